"""What tests of packets share."""
