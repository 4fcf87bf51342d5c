"""Sizing rules: a file of deployments and the promises that each of them has to keep.

``rulefile`` reads the file into cases, ``lookup`` finds what they name, ``figures`` works them out, ``judge`` holds
the rules against the figures, ``fixes`` looks for the smallest change that passes, ``baseline`` compares with an
earlier result. `kvplan.check.run.check` is all of it.
"""
