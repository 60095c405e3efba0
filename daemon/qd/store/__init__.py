"""Small facts that several hosts share: stamps, pauses, who is there. `base` is the contract, `redis` its home."""
