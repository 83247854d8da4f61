"""What every region says about every output."""
