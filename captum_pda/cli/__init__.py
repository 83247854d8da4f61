"""The command ``captum-pda``. Each command has its own file (explain, atlas, fit_prior, demo); the
others are shared."""
