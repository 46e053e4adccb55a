"""Files in buckets, on servers and hubs, and in archives and tables."""
