"""The command ``captum-pda``: explain photos, fit a prior, and a demonstration.

A photo is loaded (photos), a model chosen with its own transforms (models, checkpoints, labels),
one explanation made (explanation), written for people and programs (results) and told in words
(words). The files named after a command (demo, explain, fit_prior) only wire these together.
"""
