"""What a connection keeps beside its ready jobs, on any keyspace: `keys` is the table of names, `base` the contract."""
