"""The command ``captum-pda``.

Each command has a file of its own (explain, atlas, fit_prior, demo). They share the options, the
models by name, the photos, the explainer, and what is written and where (results, folders).
"""
