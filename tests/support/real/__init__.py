"""What tests of real share."""
