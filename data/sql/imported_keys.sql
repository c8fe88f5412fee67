-- Which records of other tuners are in the store already?
SELECT key FROM imports;
