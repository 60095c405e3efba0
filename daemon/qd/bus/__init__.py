"""Between an app and its connections: `send` is the way out, `running` the job in hand, `named` a queue by name."""
