"""The command line: one module per verb, flags in, one call, a renderer out. No arithmetic here.

`app` holds the table of verbs and the classes that parse; `main` is the entry point and the one place
where errors become text and exit status; `output` decides format, colour and destination.
"""
