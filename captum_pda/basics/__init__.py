"""What every room needs: errors, whole files, hashes, and values read back from a device."""
