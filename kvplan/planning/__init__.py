"""From specs and settings to a `Plan`: weights, budget, capacity, verdict. Pure functions."""
