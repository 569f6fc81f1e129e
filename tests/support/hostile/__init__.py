"""What tests of hostile share."""
