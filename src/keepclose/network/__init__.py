"""Networks inside the kernel: namespaces, the links between them, and the rights they take."""
