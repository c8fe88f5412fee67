-- For a plain duckdb client: which files a store is made of. With this, `views.sql` and the questions work there too:
--
--   SET VARIABLE store = '.tilewright/store';
--   .read data/sql/parts.sql
--   .read data/sql/views.sql
--   PREPARE question AS <a file of this folder>;  EXECUTE question(run := 'abc');
--
-- Tilewright lists the files itself and checks them. A pattern sees rows twice while parts are being merged beside it.
SET VARIABLE workloads_parts     = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/workloads/*.parquet'));
SET VARIABLE sketches_parts      = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/sketches/*.parquet'));
SET VARIABLE programs_parts      = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/programs/*.parquet'));
SET VARIABLE measurements_parts  = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/measurements/*.parquet'));
SET VARIABLE rounds_parts        = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/rounds/*.parquet'));
SET VARIABLE runs_parts          = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/runs/*.parquet'));
SET VARIABLE devices_parts       = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/devices/*.parquet'));
SET VARIABLE sources_parts       = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/sources/*.parquet'));
SET VARIABLE environments_parts  = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/environments/*.parquet'));
SET VARIABLE registrations_parts = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/registrations/*.parquet'));
SET VARIABLE checks_parts        = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/checks/*.parquet'));
SET VARIABLE shifts_parts        = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/shifts/*.parquet'));
SET VARIABLE promotions_parts    = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/promotions/*.parquet'));
SET VARIABLE nights_parts        = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/nights/*.parquet'));
SET VARIABLE imports_parts       = (SELECT list(file ORDER BY file DESC) FROM glob(getvariable('store') || '/imports/*.parquet'));
