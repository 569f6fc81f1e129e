"""Patches: JSON patch, merge patch, strategic merge patch and server-side apply, and managedFields.

A stored object and a patch come in; the patched object goes out, with the managedFields that record
which manager owns which fields. Results and error texts are those of kube-apiserver, also where it
differs from the RFCs. Nothing here stores or validates an object, and no stored object is changed
in place. A small patch must never cost seconds or gigabytes.
"""
