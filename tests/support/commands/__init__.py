"""What tests of commands share."""
