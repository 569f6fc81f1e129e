"""What tests of lab share."""
