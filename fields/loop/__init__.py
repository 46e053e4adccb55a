"""What to label next, and what labels say: audits, suggestions, search, and new classes among refused files."""
