"""What tests of ruleset share."""
