"""What was learnt: Arrow schemas, the Parquet store, the SQL that reads it. Knows no other room."""
