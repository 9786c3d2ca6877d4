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
INSERT INTO "tpc_delivery" VALUES('orders.0.1','ledger',0,1.79590465093984150883e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.0.1','notifier',1,1.79590465093984150883e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.1','ledger',0,1.79590465110080027577e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.1','notifier',1,1.79590465110080027577e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.2','ledger',0,1.79590465133856225015e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.1.2','notifier',1,1.79590465133856225015e+09,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.2.1','ledger',0,NULL,0,NULL,NULL,0,NULL,NULL);
INSERT INTO "tpc_delivery" VALUES('orders.2.1','notifier',1,NULL,0,NULL,NULL,0,NULL,NULL);
CREATE TABLE tpc_presence (
	application TEXT NOT NULL, 
	run TEXT NOT NULL, 
	host TEXT NOT NULL, 
	process BIGINT NOT NULL, 
	since DOUBLE NOT NULL, 
	seen DOUBLE NOT NULL, 
	ended DOUBLE, 
	error TEXT, 
	PRIMARY KEY (application, run)
);
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
INSERT INTO "tpc_run" VALUES('orders','a-run',1,1.79590464920958185193e+09,0);
CREATE TABLE tpc_schema (
	version INTEGER NOT NULL, 
	id VARCHAR(32) NOT NULL, 
	kind VARCHAR(40) NOT NULL
);
INSERT INTO "tpc_schema" VALUES(1,'27ebfeef49ea45b9a3dbaa7eb7d4c3a8','log');
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
	rejects TEXT, 
	rejected BIGINT, 
	cause TEXT, 
	detail TEXT, 
	reason TEXT, 
	passed_by BIGINT, 
	journals TEXT, 
	checksum TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (application, batch, attempt)
);
INSERT INTO "tpc_transaction" VALUES('orders.0.1','orders',0,1,'a-run','committed','commit',1.79590464922655820845e+09,1.79590465069101905826e+09,1.79590465093984150883e+09,900.0,1.79590554920950961105e+09,'{}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,'{"ledger":["e23dd9cd0a8744b7a0fe2931ba89587f","http://127.0.0.1:44719"],"notifier":["5667b3324b7f4544a9e4f0b413056bad","http://127.0.0.1:40299"]}','36fa099ed7d242c90693966ae7b9a118b0ab1a038e469125ab94f9f76b78054b');
INSERT INTO "tpc_transaction" VALUES('orders.1.1','orders',1,1,'a-run','aborted','abort',1.79590465097209334372e+09,1.7959046510728890896e+09,1.79590465110080027577e+09,900.0,1.79590555097202730179e+09,'{"traceparent":"00-5be04414eb7f6ed4abf8b820a8adeaba-9510f2f06ae4a25d-03"}',NULL,NULL,1795904650971199941,'{"service.instance.id": "2dd831bb-0a0e-4f82-a30b-27a9782a62e2", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ledger"}',NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,'error','while it was written: RuntimeError: a task failed',NULL,NULL,'{"ledger":["e23dd9cd0a8744b7a0fe2931ba89587f","http://127.0.0.1:44719"],"notifier":["5667b3324b7f4544a9e4f0b413056bad","http://127.0.0.1:40299"]}','7b75e2a8448be8ac32df9308dc0910d677556146f1138a38ed298abc3704552e');
INSERT INTO "tpc_transaction" VALUES('orders.1.2','orders',1,2,'a-run','committed','commit',1.79590465110332751274e+09,1.79590465124535441396e+09,1.79590465133856225015e+09,900.0,1.7959055511032669544e+09,'{"traceparent":"00-ae3b85ea2e139a9f6723e2c9e7e2c9bf-c4e25afb8e134c96-03"}','00-5be04414eb7f6ed4abf8b820a8adeaba-9510f2f06ae4a25d-03',NULL,1795904651102508374,'{"service.instance.id": "2dd831bb-0a0e-4f82-a30b-27a9782a62e2", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ledger"}',NULL,NULL,NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,'{"ledger":["e23dd9cd0a8744b7a0fe2931ba89587f","http://127.0.0.1:44719"],"notifier":["5667b3324b7f4544a9e4f0b413056bad","http://127.0.0.1:40299"]}','873f49579495d931c243cdf2410a9db6f0f0f54bb4636f74c45b347b107d95c5');
INSERT INTO "tpc_transaction" VALUES('orders.2.1','orders',2,1,'a-run','committing','commit',1.79590465135135698322e+09,1.7959046514566018581e+09,NULL,900.0,1.79590555135126543045e+09,'{"traceparent":"00-b2ed66d740e118ed3d24bf2898d52b41-6a059bf940b98e3f-03"}',NULL,NULL,1795904651341573723,'{"service.instance.id": "2dd831bb-0a0e-4f82-a30b-27a9782a62e2", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ledger"}',NULL,NULL,NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,'{"ledger":["e23dd9cd0a8744b7a0fe2931ba89587f","http://127.0.0.1:44719"],"notifier":["5667b3324b7f4544a9e4f0b413056bad","http://127.0.0.1:40299"]}','66d30059ff0294abf6c2035f35ffac86e77bad4d0a127b7cb4c0ce07961e3e40');
CREATE UNIQUE INDEX tpc_one_commit ON tpc_transaction (application, batch) WHERE decision = 'commit';
CREATE INDEX tpc_unfinished ON tpc_transaction (application, batch, attempt) WHERE finished IS NULL;
CREATE INDEX tpc_not_committed ON tpc_transaction (application, batch, attempt) WHERE state IN ('aborted', 'concluded');
COMMIT;
