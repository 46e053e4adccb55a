"""The command line: settings as fields of dataclasses, and the parser that reads them from words and files."""
