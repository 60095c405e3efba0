"""qd inside other frameworks, a module each. They import the framework, and nothing of qd imports them."""
