-- Every component (the core and each extension) has its own series of migrations.
ALTER TABLE tenuto.migrations ADD COLUMN component text NOT NULL DEFAULT 'tenuto';
ALTER TABLE tenuto.migrations DROP CONSTRAINT migrations_pkey;
ALTER TABLE tenuto.migrations ADD PRIMARY KEY (component, number);
