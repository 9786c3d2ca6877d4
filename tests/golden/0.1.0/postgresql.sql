SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.events_tpc_event (
    "position" bigint NOT NULL,
    producer character varying(40) NOT NULL,
    id character varying(200) NOT NULL,
    body text NOT NULL,
    at double precision NOT NULL,
    carrier text NOT NULL
);
CREATE TABLE public.events_tpc_head (
    version integer NOT NULL,
    inbox character varying(32) NOT NULL,
    "position" bigint NOT NULL,
    trimmed bigint NOT NULL,
    keep double precision NOT NULL,
    ids double precision NOT NULL
);
CREATE TABLE public.events_tpc_key (
    producer character varying(40) NOT NULL,
    id character varying(200) NOT NULL,
    digest character varying(64) NOT NULL,
    "position" bigint NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.events_tpc_passed (
    at double precision NOT NULL,
    "position" bigint NOT NULL
);
CREATE TABLE public.events_tpc_reader (
    reader character varying(40) NOT NULL,
    "position" bigint NOT NULL,
    id character varying(200) NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.orders_tpc (
    id bigint,
    amount double precision,
    tpc_tag bigint NOT NULL
);
ALTER TABLE ONLY public.orders_tpc REPLICA IDENTITY FULL;
CREATE TABLE public.orders_tpc_hidden (
    tag bigint NOT NULL,
    doomed bigint
);
CREATE VIEW public.orders AS
 SELECT id,
    amount
   FROM ( SELECT r_1.id,
            r_1.amount,
            r_1.tpc_tag
           FROM public.orders_tpc r_1
          WHERE (NOT (EXISTS ( SELECT 1
                   FROM public.orders_tpc_hidden h
                  WHERE (h.tag = r_1.tpc_tag))))) r;
CREATE TABLE public.orders_tpc_application (
    application character varying(40) NOT NULL,
    forgotten_through bigint,
    participant character varying(40) NOT NULL
);
CREATE TABLE public.orders_tpc_branch (
    tag bigint NOT NULL,
    application character varying(40) NOT NULL,
    batch bigint NOT NULL,
    attempt integer NOT NULL,
    partition bigint NOT NULL,
    task_attempt bigint NOT NULL,
    state character varying(9) NOT NULL,
    rows bigint NOT NULL,
    digest character varying(64) NOT NULL,
    checksum bigint NOT NULL,
    since double precision NOT NULL,
    sealed double precision
);
CREATE SEQUENCE public.orders_tpc_branch_tag_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.orders_tpc_branch_tag_seq OWNED BY public.orders_tpc_branch.tag;
CREATE TABLE public.orders_tpc_schema (
    version integer NOT NULL,
    id character varying(32) NOT NULL,
    kind character varying(40) NOT NULL
);
CREATE TABLE public.orders_tpc_transaction (
    application character varying(40) NOT NULL,
    batch bigint NOT NULL,
    attempt integer NOT NULL,
    seal character varying(9),
    resolved_because text,
    carrier text NOT NULL
);
CREATE TABLE public.outbox_tpc (
    tpc_tag bigint NOT NULL,
    tpc_row bigint NOT NULL,
    body text NOT NULL
);
CREATE TABLE public.outbox_tpc_application (
    application character varying(40) NOT NULL,
    forgotten_through bigint,
    participant character varying(40) NOT NULL
);
CREATE TABLE public.outbox_tpc_branch (
    tag bigint NOT NULL,
    application character varying(40) NOT NULL,
    batch bigint NOT NULL,
    attempt integer NOT NULL,
    partition bigint NOT NULL,
    task_attempt bigint NOT NULL,
    state character varying(9) NOT NULL,
    rows bigint NOT NULL,
    digest character varying(64) NOT NULL,
    checksum bigint NOT NULL,
    since double precision NOT NULL,
    sealed double precision
);
CREATE SEQUENCE public.outbox_tpc_branch_tag_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.outbox_tpc_branch_tag_seq OWNED BY public.outbox_tpc_branch.tag;
CREATE TABLE public.outbox_tpc_by_hand (
    number bigint NOT NULL,
    key character varying(160) NOT NULL,
    action character varying(5) NOT NULL,
    who text NOT NULL,
    reason text NOT NULL,
    at double precision NOT NULL,
    status integer NOT NULL,
    since double precision NOT NULL,
    body text,
    not_taken boolean NOT NULL,
    answer text
);
CREATE SEQUENCE public.outbox_tpc_by_hand_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.outbox_tpc_by_hand_number_seq OWNED BY public.outbox_tpc_by_hand.number;
CREATE TABLE public.outbox_tpc_hidden (
    tag bigint NOT NULL,
    doomed bigint
);
CREATE TABLE public.outbox_tpc_quarantine (
    key character varying(160) NOT NULL,
    body text NOT NULL,
    status integer NOT NULL,
    since double precision NOT NULL,
    answer text
);
CREATE TABLE public.outbox_tpc_queue (
    application character varying(40) NOT NULL,
    batch bigint NOT NULL,
    partition bigint NOT NULL,
    task_attempt bigint NOT NULL,
    attempt integer NOT NULL,
    tag bigint NOT NULL,
    carrier text NOT NULL,
    committed double precision NOT NULL
);
CREATE TABLE public.outbox_tpc_refusals (
    application character varying(40) NOT NULL,
    in_a_row integer NOT NULL
);
CREATE TABLE public.outbox_tpc_schema (
    version integer NOT NULL,
    id character varying(32) NOT NULL,
    kind character varying(40) NOT NULL
);
CREATE TABLE public.outbox_tpc_sender (
    id integer NOT NULL,
    holder character varying(40) NOT NULL,
    until double precision NOT NULL
);
CREATE TABLE public.outbox_tpc_transaction (
    application character varying(40) NOT NULL,
    batch bigint NOT NULL,
    attempt integer NOT NULL,
    seal character varying(9),
    resolved_because text,
    carrier text NOT NULL
);
CREATE TABLE public.tpc_application (
    name text NOT NULL,
    query text,
    forgotten_through bigint,
    durable_forgotten_through bigint,
    lease_holder text,
    lease_until double precision
);
CREATE TABLE public.tpc_audit (
    at double precision NOT NULL,
    who text NOT NULL,
    verb text NOT NULL,
    about text NOT NULL,
    why text NOT NULL,
    before text,
    after text
);
CREATE TABLE public.tpc_delivery (
    transaction_id text NOT NULL,
    participant text NOT NULL,
    "position" integer NOT NULL,
    acknowledged double precision,
    retries bigint NOT NULL,
    retry_at double precision,
    error text,
    own_sink boolean DEFAULT false NOT NULL,
    untold text,
    given_up double precision
);
CREATE TABLE public.tpc_receipt (
    transaction_id text NOT NULL,
    participant text NOT NULL,
    branch text NOT NULL,
    "position" integer NOT NULL,
    vote text NOT NULL,
    rows bigint NOT NULL,
    digest text NOT NULL,
    handle text NOT NULL
);
CREATE TABLE public.tpc_run (
    application text NOT NULL,
    run text NOT NULL,
    sequence bigint NOT NULL,
    registered double precision NOT NULL,
    batch bigint NOT NULL
);
CREATE TABLE public.tpc_schema (
    version integer NOT NULL,
    id character varying(32) NOT NULL,
    kind character varying(40) NOT NULL
);
CREATE TABLE public.tpc_transaction (
    id text NOT NULL,
    application text NOT NULL,
    batch bigint NOT NULL,
    attempt bigint NOT NULL,
    run text NOT NULL,
    state text NOT NULL,
    decision text,
    started double precision NOT NULL,
    decided double precision,
    finished double precision,
    timeout double precision DEFAULT '0'::double precision NOT NULL,
    deadline double precision,
    carrier text NOT NULL,
    previous text,
    links text,
    rows bigint,
    cause text,
    detail text,
    reason text,
    passed_by bigint,
    journals text,
    checksum text NOT NULL
);
ALTER TABLE ONLY public.orders_tpc_branch ALTER COLUMN tag SET DEFAULT nextval('public.orders_tpc_branch_tag_seq'::regclass);
ALTER TABLE ONLY public.outbox_tpc_branch ALTER COLUMN tag SET DEFAULT nextval('public.outbox_tpc_branch_tag_seq'::regclass);
ALTER TABLE ONLY public.outbox_tpc_by_hand ALTER COLUMN number SET DEFAULT nextval('public.outbox_tpc_by_hand_number_seq'::regclass);
INSERT INTO public.events_tpc_event VALUES (1, 'shop', 'e1', '{"id": 1}', 1795815819.5996504, '{}');
INSERT INTO public.events_tpc_event VALUES (2, 'shop', 'e2', '{"id": 2}', 1795815819.5996504, '{}');
INSERT INTO public.events_tpc_head VALUES (1, '5e4702e60f8546bf973307280b932fbc', 2, 0, 604800, 7776000);
INSERT INTO public.events_tpc_key VALUES ('shop', 'e1', '037c9214eef74cc3887f3a4f085b4e17d76280dafd273b0ee160c09c4ba1cfd4', 1, 1795815819.5996504);
INSERT INTO public.events_tpc_key VALUES ('shop', 'e2', '9e7e65453739bbc64ba155eed18a37bd5fb1196c7f29ded1da660b94414d7ad8', 2, 1795815819.5996504);
INSERT INTO public.events_tpc_passed VALUES (1795815819.6378324, 1);
INSERT INTO public.events_tpc_reader VALUES ('orders', 1, 'e1', 1795815819.6378324);
INSERT INTO public.orders_tpc VALUES (0, 0.5, 1);
INSERT INTO public.orders_tpc VALUES (1, 1.5, 3);
INSERT INTO public.orders_tpc VALUES (2, 2.5, 4);
INSERT INTO public.orders_tpc_application VALUES ('orders', NULL, 'ledger');
INSERT INTO public.orders_tpc_branch VALUES (1, 'orders', 0, 1, 0, 0, 'committed', 1, 'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:', 3188355012, 1795815818.502848, 1795815818.6183069);
INSERT INTO public.orders_tpc_branch VALUES (2, 'orders', 1, 1, 0, 0, 'aborted', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 768190865, 1795815818.7608888, 1795815818.7971237);
INSERT INTO public.orders_tpc_branch VALUES (3, 'orders', 1, 2, 0, 0, 'committed', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 283175417, 1795815818.9672875, 1795815819.109116);
INSERT INTO public.orders_tpc_branch VALUES (4, 'orders', 2, 1, 0, 0, 'prepared', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 3233912392, 1795815819.2477264, NULL);
INSERT INTO public.orders_tpc_hidden VALUES (4, NULL);
INSERT INTO public.orders_tpc_schema VALUES (1, '84d4f64283f9499686bdb4f4b4f3935c', 'tagged_rows');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 0, 1, 'committed', NULL, '{"traceparent": "00-6e6ff730ddbfb13fb08948d81f406c1e-6d3bb3aa3722fff3-03"}');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 1, 1, 'aborted', NULL, '{"traceparent": "00-249409c36d44b3a70115daa638ca191b-a367a55b112b101e-03"}');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 1, 2, 'committed', NULL, '{"traceparent": "00-3ab20fc19fc71d696a7df036803376e0-18ff8937b374a748-03"}');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 2, 1, NULL, NULL, '{"traceparent": "00-969a8dce61d9a1070f496e13ce0341c1-5819140a05d5d6aa-03"}');
INSERT INTO public.outbox_tpc VALUES (3, 0, '{"id": 1, "amount": 1.5}');
INSERT INTO public.outbox_tpc VALUES (4, 0, '{"id": 2, "amount": 2.5}');
INSERT INTO public.outbox_tpc_application VALUES ('orders', NULL, 'notifier');
INSERT INTO public.outbox_tpc_branch VALUES (1, 'orders', 0, 1, 0, 0, 'committed', 1, 'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:', 3188355012, 1795815818.4268956, 1795815818.6488981);
INSERT INTO public.outbox_tpc_branch VALUES (2, 'orders', 1, 1, 0, 0, 'aborted', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 768190865, 1795815818.7670617, 1795815818.8167083);
INSERT INTO public.outbox_tpc_branch VALUES (3, 'orders', 1, 2, 0, 0, 'committed', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 283175417, 1795815818.9845989, 1795815819.0720234);
INSERT INTO public.outbox_tpc_branch VALUES (4, 'orders', 2, 1, 0, 0, 'prepared', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 3233912392, 1795815819.2234855, NULL);
INSERT INTO public.outbox_tpc_hidden VALUES (4, NULL);
INSERT INTO public.outbox_tpc_quarantine VALUES ('orders.0.1.0.0.0', '{"id": 0, "amount": 0.5}', 422, 1795815818.7194076, 'no such card');
INSERT INTO public.outbox_tpc_queue VALUES ('orders', 1, 0, 0, 2, 3, '{"traceparent": "00-3ab20fc19fc71d696a7df036803376e0-8763028726f8cc77-03"}', 1795815819.0741453);
INSERT INTO public.outbox_tpc_refusals VALUES ('orders', 1);
INSERT INTO public.outbox_tpc_schema VALUES (1, '9deb1ce5945f4462840e97acd30e5f78', 'outbox');
INSERT INTO public.outbox_tpc_sender VALUES (1, '147f4a4b3e5f0393a766640cec0acc48', 0);
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 0, 1, 'committed', NULL, '{"traceparent": "00-6e6ff730ddbfb13fb08948d81f406c1e-2e544fa478e75cf7-03"}');
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 1, 1, 'aborted', NULL, '{"traceparent": "00-249409c36d44b3a70115daa638ca191b-613cf5952a83150f-03"}');
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 1, 2, 'committed', NULL, '{"traceparent": "00-3ab20fc19fc71d696a7df036803376e0-33e34cd68e57f1ee-03"}');
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 2, 1, NULL, NULL, '{"traceparent": "00-969a8dce61d9a1070f496e13ce0341c1-fb0fc618d78da9b6-03"}');
INSERT INTO public.tpc_application VALUES ('orders', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.0.1', 'ledger', 0, 1795815818.6809833, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.0.1', 'notifier', 1, 1795815818.6809833, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.1', 'ledger', 0, 1795815818.8617675, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.1', 'notifier', 1, 1795815818.8716753, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.2', 'ledger', 0, 1795815819.149531, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.2', 'notifier', 1, 1795815819.149531, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.2.1', 'notifier', 1, NULL, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.2.1', 'ledger', 0, NULL, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_receipt VALUES ('orders.1.2', 'notifier', '0.0', 1, 'commit', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 'null');
INSERT INTO public.tpc_receipt VALUES ('orders.1.2', 'ledger', '0.0', 0, 'commit', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 'null');
INSERT INTO public.tpc_receipt VALUES ('orders.2.1', 'notifier', '0.0', 1, 'commit', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 'null');
INSERT INTO public.tpc_receipt VALUES ('orders.2.1', 'ledger', '0.0', 0, 'commit', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 'null');
INSERT INTO public.tpc_run VALUES ('orders', 'a-run', 1, 1795815818.2321985, 0);
INSERT INTO public.tpc_schema VALUES (1, 'aff64c1763854b90955290a70ed26d85', 'log');
INSERT INTO public.tpc_transaction VALUES ('orders.0.1', 'orders', 0, 1, 'a-run', 'committed', 'commit', 1795815818.233612, 1795815818.557982, 1795815818.6809833, 900, 1795816718.229647, '{"tpc-process":"{\"service.instance.id\": \"a998c61f-60aa-44ad-95f5-ceb600028ad2\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795815818209862247","traceparent":"00-6e6ff730ddbfb13fb08948d81f406c1e-e02485dc7e0aaed4-03"}', NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, '66c9a6801cf70170a4ea6792c91fbe1c5b76f10490a93a37b6bf9563cc528989');
INSERT INTO public.tpc_transaction VALUES ('orders.1.1', 'orders', 1, 1, 'a-run', 'aborted', 'abort', 1795815818.7039032, 1795815818.781112, 1795815818.8716753, 900, 1795816718.703423, '{"tpc-process":"{\"service.instance.id\": \"a998c61f-60aa-44ad-95f5-ceb600028ad2\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795815818697142953","traceparent":"00-249409c36d44b3a70115daa638ca191b-c0c4794c2c004428-03"}', NULL, NULL, 0, 'error', 'while it was written: RuntimeError: a task failed', NULL, NULL, NULL, '462e5aca30cf0af49461e17627d9cb5ae77edc70ddf43f6cbd9df7df9567c555');
INSERT INTO public.tpc_transaction VALUES ('orders.1.2', 'orders', 1, 2, 'a-run', 'committed', 'commit', 1795815818.8801055, 1795815819.0381346, 1795815819.149531, 900, 1795816718.879607, '{"tpc-process":"{\"service.instance.id\": \"a998c61f-60aa-44ad-95f5-ceb600028ad2\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795815818877608862","traceparent":"00-3ab20fc19fc71d696a7df036803376e0-2eca62da6025e442-03"}', '00-249409c36d44b3a70115daa638ca191b-c0c4794c2c004428-03', NULL, 1, NULL, NULL, NULL, NULL, NULL, 'b1330b8aa20a3f0591461839e1de211a549edb9ae6c8484c7f408ebaaff13b38');
INSERT INTO public.tpc_transaction VALUES ('orders.2.1', 'orders', 2, 1, 'a-run', 'committing', 'commit', 1795815819.1680775, 1795815819.2819078, NULL, 900, 1795816719.16751, '{"tpc-process":"{\"service.instance.id\": \"a998c61f-60aa-44ad-95f5-ceb600028ad2\", \"host.name\": \"vm\", \"ip\": \"vm\", \"telemetry.sdk.language\": \"python\", \"telemetry.sdk.name\": \"opentelemetry\", \"telemetry.sdk.version\": \"1.45.1\", \"service.name\": \"ParticipantSink\"}","tpc-start":"1795815819154771531","traceparent":"00-969a8dce61d9a1070f496e13ce0341c1-2b90f0f70fce19cf-03"}', NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, '9680ec50d15d4f939cae31cb4ae8436799988bec59df3b36b9ad0c7c389688fd');
SELECT pg_catalog.setval('public.orders_tpc_branch_tag_seq', 4, true);
SELECT pg_catalog.setval('public.outbox_tpc_branch_tag_seq', 4, true);
SELECT pg_catalog.setval('public.outbox_tpc_by_hand_number_seq', 1, false);
ALTER TABLE ONLY public.events_tpc_event
    ADD CONSTRAINT events_tpc_event_pkey PRIMARY KEY ("position");
ALTER TABLE ONLY public.events_tpc_key
    ADD CONSTRAINT events_tpc_key_pkey PRIMARY KEY (producer, id);
ALTER TABLE ONLY public.events_tpc_passed
    ADD CONSTRAINT events_tpc_passed_pkey PRIMARY KEY (at);
ALTER TABLE ONLY public.events_tpc_reader
    ADD CONSTRAINT events_tpc_reader_pkey PRIMARY KEY (reader);
ALTER TABLE ONLY public.orders_tpc_application
    ADD CONSTRAINT orders_tpc_application_pkey PRIMARY KEY (application);
ALTER TABLE ONLY public.orders_tpc_branch
    ADD CONSTRAINT orders_tpc_branch_application_batch_attempt_partition_task__key UNIQUE (application, batch, attempt, partition, task_attempt);
ALTER TABLE ONLY public.orders_tpc_branch
    ADD CONSTRAINT orders_tpc_branch_pkey PRIMARY KEY (tag);
ALTER TABLE ONLY public.orders_tpc_hidden
    ADD CONSTRAINT orders_tpc_hidden_pkey PRIMARY KEY (tag);
ALTER TABLE ONLY public.orders_tpc_transaction
    ADD CONSTRAINT orders_tpc_transaction_pkey PRIMARY KEY (application, batch, attempt);
ALTER TABLE ONLY public.outbox_tpc_application
    ADD CONSTRAINT outbox_tpc_application_pkey PRIMARY KEY (application);
ALTER TABLE ONLY public.outbox_tpc_branch
    ADD CONSTRAINT outbox_tpc_branch_application_batch_attempt_partition_task__key UNIQUE (application, batch, attempt, partition, task_attempt);
ALTER TABLE ONLY public.outbox_tpc_branch
    ADD CONSTRAINT outbox_tpc_branch_pkey PRIMARY KEY (tag);
ALTER TABLE ONLY public.outbox_tpc_by_hand
    ADD CONSTRAINT outbox_tpc_by_hand_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.outbox_tpc_hidden
    ADD CONSTRAINT outbox_tpc_hidden_pkey PRIMARY KEY (tag);
ALTER TABLE ONLY public.outbox_tpc
    ADD CONSTRAINT outbox_tpc_pkey PRIMARY KEY (tpc_tag, tpc_row);
ALTER TABLE ONLY public.outbox_tpc_quarantine
    ADD CONSTRAINT outbox_tpc_quarantine_pkey PRIMARY KEY (key);
ALTER TABLE ONLY public.outbox_tpc_queue
    ADD CONSTRAINT outbox_tpc_queue_pkey PRIMARY KEY (application, batch, partition, task_attempt);
ALTER TABLE ONLY public.outbox_tpc_refusals
    ADD CONSTRAINT outbox_tpc_refusals_pkey PRIMARY KEY (application);
ALTER TABLE ONLY public.outbox_tpc_sender
    ADD CONSTRAINT outbox_tpc_sender_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.outbox_tpc_transaction
    ADD CONSTRAINT outbox_tpc_transaction_pkey PRIMARY KEY (application, batch, attempt);
ALTER TABLE ONLY public.tpc_application
    ADD CONSTRAINT tpc_application_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.tpc_application
    ADD CONSTRAINT tpc_application_query_key UNIQUE (query);
ALTER TABLE ONLY public.tpc_delivery
    ADD CONSTRAINT tpc_delivery_pkey PRIMARY KEY (transaction_id, participant);
ALTER TABLE ONLY public.tpc_receipt
    ADD CONSTRAINT tpc_receipt_pkey PRIMARY KEY (transaction_id, participant, branch);
ALTER TABLE ONLY public.tpc_run
    ADD CONSTRAINT tpc_run_application_sequence_key UNIQUE (application, sequence);
ALTER TABLE ONLY public.tpc_run
    ADD CONSTRAINT tpc_run_pkey PRIMARY KEY (application, run);
ALTER TABLE ONLY public.tpc_transaction
    ADD CONSTRAINT tpc_transaction_application_batch_attempt_key UNIQUE (application, batch, attempt);
ALTER TABLE ONLY public.tpc_transaction
    ADD CONSTRAINT tpc_transaction_pkey PRIMARY KEY (id);
CREATE INDEX events_tpc_key_position ON public.events_tpc_key USING btree ("position");
CREATE INDEX orders_tpc_open ON public.orders_tpc_branch USING btree (tag) WHERE (sealed IS NULL);
CREATE INDEX orders_tpc_tag ON public.orders_tpc USING brin (tpc_tag);
CREATE INDEX outbox_tpc_by_hand_key ON public.outbox_tpc_by_hand USING btree (key);
CREATE INDEX outbox_tpc_open ON public.outbox_tpc_branch USING btree (tag) WHERE (sealed IS NULL);
CREATE INDEX tpc_not_committed ON public.tpc_transaction USING btree (application, batch, attempt) WHERE (state = ANY (ARRAY['aborted'::text, 'concluded'::text]));
CREATE UNIQUE INDEX tpc_one_commit ON public.tpc_transaction USING btree (application, batch) WHERE (decision = 'commit'::text);
CREATE INDEX tpc_unfinished ON public.tpc_transaction USING btree (application, batch, attempt) WHERE (finished IS NULL);
