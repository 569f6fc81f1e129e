"""CSV files of the reference simulator of KEP-2004: inputs and results.

Bytes come in and are scanned into rows of nodes and endpoints by zone; each bad row is reported
with its line, its column and a fix, and skipped. Results go out row by row with four decimals,
rounded as printf rounds. Formats agree with the reference byte for byte; labels are copied and
never changed.
"""
