"""Laravel's Redis queue, as scripts. `queue` is the contract, `keys` the table of keys, `wire` one connection."""
