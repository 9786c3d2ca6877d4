BEGIN TRANSACTION;
CREATE TABLE tpc_application (
	name TEXT NOT NULL, 
	"query" TEXT, 
	forgotten_through BIGINT, 
	durable_forgotten_through BIGINT, 
	lease_holder TEXT, 
	lease_until DOUBLE, 
	PRIMARY KEY (name), 
	UNIQUE ("query")
);
INSERT INTO "tpc_application" VALUES('orders',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE tpc_audit (
	at DOUBLE NOT NULL, 
	who TEXT NOT NULL, 
	verb TEXT NOT NULL, 
	about TEXT NOT NULL, 
	why TEXT NOT NULL, 
	"before" TEXT, 
	"after" TEXT
);
CREATE TABLE tpc_delivery (
	transaction_id TEXT NOT NULL, 
	participant TEXT NOT NULL, 
	position INTEGER NOT NULL, 
	acknowledged DOUBLE, 
	retries BIGINT NOT NULL, 
	retry_at DOUBLE, 
	error TEXT, 
	own_sink BOOLEAN DEFAULT 0 NOT NULL, 
	untold TEXT, 
	given_up DOUBLE, 
	PRIMARY KEY (transaction_id, participant)
);
INSERT INTO "tpc_delivery" VALUES('orders.0.1','ledger',0,1.79583040596201181414e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.0.1','notifier',1,1.79583040596201181414e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.1','ledger',0,1.79583040601830720901e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.1','notifier',1,1.79583040601830720901e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.2','ledger',0,1.79583040607066321374e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.2','notifier',1,1.79583040607066321374e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.2.1','ledger',0,NULL,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.2.1','notifier',1,NULL,0,NULL,NULL,0,NULL,NULL);
CREATE TABLE tpc_receipt (
	transaction_id TEXT NOT NULL, 
	participant TEXT NOT NULL, 
	branch TEXT NOT NULL, 
	position INTEGER NOT NULL, 
	vote TEXT NOT NULL, 
	rows BIGINT NOT NULL, 
	digest TEXT NOT NULL, 
	handle TEXT NOT NULL, 
	PRIMARY KEY (transaction_id, participant, branch)
);
INSERT INTO "tpc_receipt" VALUES('orders.1.2','ledger','0.0',0,'commit',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:','null');
INSERT INTO "tpc_receipt" VALUES('orders.1.2','notifier','0.0',1,'commit',1,'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:','null');
INSERT INTO "tpc_receipt" VALUES('orders.2.1','ledger','0.0',0,'commit',1,'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:','null');
INSERT INTO "tpc_receipt" VALUES('orders.2.1','notifier','0.0',1,'commit',1,'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:','null');
CREATE TABLE tpc_run (
	application TEXT NOT NULL, 
	run TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	registered DOUBLE NOT NULL, 
	batch BIGINT NOT NULL, 
	PRIMARY KEY (application, run), 
	UNIQUE (application, sequence)
);
INSERT INTO "tpc_run" VALUES('orders','a-run',1,1.79583040553570318217e+09,0);
CREATE TABLE tpc_schema (
	version INTEGER NOT NULL, 
	id VARCHAR(32) NOT NULL, 
	kind VARCHAR(40) NOT NULL
);
INSERT INTO "tpc_schema" VALUES(1,'bfbb5f2aa2474432bd665fdb8dae0453','log');
CREATE TABLE tpc_transaction (
	id TEXT NOT NULL, 
	application TEXT NOT NULL, 
	batch BIGINT NOT NULL, 
	attempt BIGINT NOT NULL, 
	run TEXT NOT NULL, 
	state TEXT NOT NULL, 
	decision TEXT, 
	started DOUBLE NOT NULL, 
	decided DOUBLE, 
	finished DOUBLE, 
	timeout DOUBLE DEFAULT '0' NOT NULL, 
	deadline DOUBLE, 
	carrier TEXT NOT NULL, 
	previous TEXT, 
	root_link TEXT, 
	root_start BIGINT, 
	root_resource TEXT, 
	launch_digest TEXT, 
	launch_namespace TEXT, 
	launch_repository TEXT, 
	launch_builder TEXT, 
	links TEXT, 
	rows BIGINT, 
	cause TEXT, 
	detail TEXT, 
	reason TEXT, 
	passed_by BIGINT, 
	journals TEXT, 
	checksum TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (application, batch, attempt)
);
INSERT INTO "tpc_transaction" VALUES('orders.0.1','orders',0,1,'a-run','committed','commit',1.79583040553618121146e+09,1.79583040593019294733e+09,1.79583040596201181414e+09,900.0,1.79583130553563642501e+09,'{}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,'d40cac2cec8436d57ced04543a2dac4f8a8a5050f3a33e252fec82cb5aef71c3');
INSERT INTO "tpc_transaction" VALUES('orders.1.1','orders',1,1,'a-run','aborted','abort',1.79583040597240924836e+09,1.79583040599112105364e+09,1.79583040601830720901e+09,900.0,1.79583130597236490248e+09,'{"traceparent":"00-8182ce630d588318bcad5a190691b9da-1cc811137b137baa-03"}',NULL,NULL,1795830405971884541,'{"service.instance.id": "75b844a7-ecf5-49bd-8f19-82c0ce3aa3eb", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}',NULL,NULL,NULL,NULL,NULL,0,'error','while it was written: RuntimeError: a task failed',NULL,NULL,NULL,'eb7180f13fc9fbba22499c34214b015d9cc33be9fd6a154c712a2ec652665c74');
INSERT INTO "tpc_transaction" VALUES('orders.1.2','orders',1,2,'a-run','committed','commit',1.79583040602091336245e+09,1.79583040605192375185e+09,1.79583040607066321374e+09,900.0,1.7958313060208630562e+09,'{"traceparent":"00-acd30fcca1cf2bf15e2d045446314723-3f95f5ef9ab64a49-03"}','00-8182ce630d588318bcad5a190691b9da-1cc811137b137baa-03',NULL,1795830406020076761,'{"service.instance.id": "75b844a7-ecf5-49bd-8f19-82c0ce3aa3eb", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}',NULL,NULL,NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,'4aac5371b5385bd187d58b6b03e4b174598ee6fbdfcd1b16f82cae271a1b6701');
INSERT INTO "tpc_transaction" VALUES('orders.2.1','orders',2,1,'a-run','committing','commit',1795830406.07338,1.79583040610148024561e+09,NULL,900.0,1.79583130607332015033e+09,'{"traceparent":"00-5e5b8768dd64bcc33428324b64170ec6-164020bafc83528e-03"}',NULL,NULL,1795830406072657700,'{"service.instance.id": "75b844a7-ecf5-49bd-8f19-82c0ce3aa3eb", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ParticipantSink"}',NULL,NULL,NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,'24d340fc73ea121f8f162807991cbb59c5183b8abad651bc0597e40765b2a2cc');
CREATE UNIQUE INDEX tpc_one_commit ON tpc_transaction (application, batch) WHERE decision = 'commit';
CREATE INDEX tpc_unfinished ON tpc_transaction (application, batch, attempt) WHERE finished IS NULL;
CREATE INDEX tpc_not_committed ON tpc_transaction (application, batch, attempt) WHERE state IN ('aborted', 'concluded');
COMMIT;
