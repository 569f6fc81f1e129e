"""Objects and their history: maps in memory for reading, SQLite for what must survive."""
