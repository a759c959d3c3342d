"""The verbs of `korvet topics` that read, write and remove records, and the forms of records."""
