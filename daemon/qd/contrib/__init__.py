"""Integrations, one module per framework. They import the framework; no other part of qd imports them."""
