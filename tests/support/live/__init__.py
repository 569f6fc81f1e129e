"""What tests of live share."""
