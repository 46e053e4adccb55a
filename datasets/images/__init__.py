"""Opens picture files safely, preprocesses them for a backbone, and caches the decoded pixels."""
