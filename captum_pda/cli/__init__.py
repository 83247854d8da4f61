"""The command ``captum-pda``: a file for each command, and what they share."""
