"""What tests of proposals share."""
