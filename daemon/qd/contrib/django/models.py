"""No models. Django sends an app its post_migrate only if it has this module, see testing.py."""
