"""Demo data sets, which are written without a network, and public data sets, which are downloaded."""
