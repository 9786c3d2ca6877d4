BEGIN TRANSACTION;
CREATE TABLE events_tpc_event (
	position BIGINT NOT NULL, 
	producer VARCHAR(40) NOT NULL, 
	id VARCHAR(200) NOT NULL, 
	body TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	carrier TEXT NOT NULL, 
	PRIMARY KEY (position)
);
INSERT INTO "events_tpc_event" VALUES(1,'shop','e1','{"id": 1}',1.79590465162783336642e+09,'{}');
INSERT INTO "events_tpc_event" VALUES(2,'shop','e2','{"id": 2}',1.79590465162783336642e+09,'{}');
CREATE TABLE events_tpc_inbox (
	position BIGINT NOT NULL, 
	trimmed BIGINT NOT NULL, 
	keep FLOAT NOT NULL, 
	ids FLOAT NOT NULL
);
INSERT INTO "events_tpc_inbox" VALUES(2,0,604800.0,7776000.0);
CREATE TABLE events_tpc_key (
	producer VARCHAR(40) NOT NULL, 
	id VARCHAR(200) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	position BIGINT NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (producer, id)
);
INSERT INTO "events_tpc_key" VALUES('shop','e1','037c9214eef74cc3887f3a4f085b4e17d76280dafd273b0ee160c09c4ba1cfd4',1,1.79590465162783336642e+09);
INSERT INTO "events_tpc_key" VALUES('shop','e2','9e7e65453739bbc64ba155eed18a37bd5fb1196c7f29ded1da660b94414d7ad8',2,1.79590465162783336642e+09);
CREATE TABLE events_tpc_passed (
	at FLOAT NOT NULL, 
	position BIGINT NOT NULL, 
	PRIMARY KEY (at)
);
INSERT INTO "events_tpc_passed" VALUES(1.79590465164067983631e+09,1);
CREATE TABLE events_tpc_reader (
	reader VARCHAR(40) NOT NULL, 
	position BIGINT NOT NULL, 
	id VARCHAR(200) NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (reader)
);
INSERT INTO "events_tpc_reader" VALUES('orders',1,'e1',1.79590465164067983631e+09);
CREATE TABLE events_tpc_schema (
	version INTEGER NOT NULL, 
	id VARCHAR(32) NOT NULL, 
	kind VARCHAR(40) NOT NULL
);
INSERT INTO "events_tpc_schema" VALUES(1,'99e36b63bef247a29735275f9ed8aa4d','inbox');
CREATE INDEX events_tpc_key_position ON events_tpc_key (position);
COMMIT;
