def write(facts, samples):
    pass
