"""DataLoaders -> a model that can be trusted. Knows ``datasets``, not ``app``."""
