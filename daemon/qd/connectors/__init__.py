"""The outside worlds a queue can live in. One folder or file a driver, one contract: `base`."""
