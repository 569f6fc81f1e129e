"""What tests in several folders share: clusters, networks, clients and processes to test with."""
