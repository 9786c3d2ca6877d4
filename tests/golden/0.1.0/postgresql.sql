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
CREATE TABLE public.events_tpc_inbox (
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
CREATE TABLE public.events_tpc_schema (
    version integer NOT NULL,
    id character varying(32) NOT NULL,
    kind character varying(40) NOT NULL
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
    trouble character varying(12) NOT NULL,
    status integer NOT NULL,
    since double precision NOT NULL,
    answer text,
    body text
);
CREATE TABLE public.outbox_tpc_queue (
    application character varying(40) NOT NULL,
    batch bigint NOT NULL,
    partition bigint NOT NULL,
    task_attempt bigint NOT NULL,
    tag bigint NOT NULL,
    attempt integer NOT NULL,
    carrier text NOT NULL,
    committed double precision NOT NULL,
    rows bigint NOT NULL,
    next_row bigint NOT NULL
);
CREATE TABLE public.outbox_tpc_refusals (
    application character varying(40) NOT NULL,
    in_a_row integer NOT NULL,
    answer text
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
CREATE TABLE public.tpc_presence (
    application text NOT NULL,
    run text NOT NULL,
    host text NOT NULL,
    process bigint NOT NULL,
    since double precision NOT NULL,
    seen double precision NOT NULL,
    ended double precision,
    error text
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
    root_link text,
    root_start bigint,
    root_resource text,
    launch_digest text,
    launch_namespace text,
    launch_repository text,
    launch_builder text,
    links text,
    rows bigint,
    rejects text,
    rejected bigint,
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
INSERT INTO public.events_tpc_event VALUES (1, 'shop', 'e1', '{"id": 1}', 1795904654.2105546, '{}');
INSERT INTO public.events_tpc_event VALUES (2, 'shop', 'e2', '{"id": 2}', 1795904654.2105546, '{}');
INSERT INTO public.events_tpc_inbox VALUES (2, 0, 604800, 7776000);
INSERT INTO public.events_tpc_key VALUES ('shop', 'e1', '037c9214eef74cc3887f3a4f085b4e17d76280dafd273b0ee160c09c4ba1cfd4', 1, 1795904654.2105546);
INSERT INTO public.events_tpc_key VALUES ('shop', 'e2', '9e7e65453739bbc64ba155eed18a37bd5fb1196c7f29ded1da660b94414d7ad8', 2, 1795904654.2105546);
INSERT INTO public.events_tpc_passed VALUES (1795904654.249665, 1);
INSERT INTO public.events_tpc_reader VALUES ('orders', 1, 'e1', 1795904654.249665);
INSERT INTO public.events_tpc_schema VALUES (1, '23e98085b0044caa9bca7199ecafd674', 'inbox');
INSERT INTO public.orders_tpc VALUES (0, 0.5, 1);
INSERT INTO public.orders_tpc VALUES (1, 1.5, 3);
INSERT INTO public.orders_tpc VALUES (2, 2.5, 4);
INSERT INTO public.orders_tpc_application VALUES ('orders', NULL, 'ledger');
INSERT INTO public.orders_tpc_branch VALUES (1, 'orders', 0, 1, 0, 0, 'committed', 1, 'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:', 3188355012, 1795904653.600736, 1795904653.6723983);
INSERT INTO public.orders_tpc_branch VALUES (2, 'orders', 1, 1, 0, 0, 'aborted', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 768190865, 1795904653.727986, 1795904653.7729769);
INSERT INTO public.orders_tpc_branch VALUES (3, 'orders', 1, 2, 0, 0, 'committed', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 283175417, 1795904653.8500073, 1795904653.8742523);
INSERT INTO public.orders_tpc_branch VALUES (4, 'orders', 2, 1, 0, 0, 'prepared', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 3233912392, 1795904653.9400315, NULL);
INSERT INTO public.orders_tpc_hidden VALUES (4, NULL);
INSERT INTO public.orders_tpc_schema VALUES (1, '3ee0b2ef56714e5db7a6d053403345ef', 'tagged_rows');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 0, 1, 'committed', NULL, '{"traceparent": "00-89bfb8060b00c0d157a24411202addcb-7df9dbf69177cb2f-03"}');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 1, 1, 'aborted', NULL, '{"traceparent": "00-851649b20b5a3a3380e47b5250fa6b49-3f8b467dd2e9b027-03"}');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 1, 2, 'committed', NULL, '{"traceparent": "00-4879b8d446a7860d53e9f16786b0a191-b41d49182c662c21-03"}');
INSERT INTO public.orders_tpc_transaction VALUES ('orders', 2, 1, NULL, NULL, '{"traceparent": "00-08939b2c782bc63e254d1bbbd2e9d82b-5986c71f0f55f380-03"}');
INSERT INTO public.outbox_tpc VALUES (3, 0, '{"id": 1, "amount": 1.5}');
INSERT INTO public.outbox_tpc VALUES (4, 0, '{"id": 2, "amount": 2.5}');
INSERT INTO public.outbox_tpc_application VALUES ('orders', NULL, 'notifier');
INSERT INTO public.outbox_tpc_branch VALUES (1, 'orders', 0, 1, 0, 0, 'committed', 1, 'sha-256=:G6bPl933MZKLLCVpHqiwuNB3by473Y4NMrVaQ2fV4Q4=:', 3188355012, 1795904653.5480855, 1795904653.658186);
INSERT INTO public.outbox_tpc_branch VALUES (2, 'orders', 1, 1, 0, 0, 'aborted', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 768190865, 1795904653.732352, 1795904653.786803);
INSERT INTO public.outbox_tpc_branch VALUES (3, 'orders', 1, 2, 0, 0, 'committed', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 283175417, 1795904653.847603, 1795904653.8699698);
INSERT INTO public.outbox_tpc_branch VALUES (4, 'orders', 2, 1, 0, 0, 'prepared', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 3233912392, 1795904653.92977, NULL);
INSERT INTO public.outbox_tpc_hidden VALUES (4, NULL);
INSERT INTO public.outbox_tpc_quarantine VALUES ('orders.0.1.0.0.0', 'refused', 422, 1795904653.784443, 'no such card', '{"id": 0, "amount": 0.5}');
INSERT INTO public.outbox_tpc_queue VALUES ('orders', 1, 0, 0, 3, 2, '{"traceparent": "00-4879b8d446a7860d53e9f16786b0a191-91343a27075987c8-03"}', 1795904653.8711147, 1, 0);
INSERT INTO public.outbox_tpc_refusals VALUES ('orders', 1, 'the partner answered 503');
INSERT INTO public.outbox_tpc_schema VALUES (1, '04d2ba2282574a97ae695e28e2892c6d', 'outbox');
INSERT INTO public.outbox_tpc_sender VALUES (1, 'd36ed1351120f5a5f1fda803be239321', 0);
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 0, 1, 'committed', NULL, '{"traceparent": "00-89bfb8060b00c0d157a24411202addcb-1dc54e1d18af81ec-03"}');
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 1, 1, 'aborted', NULL, '{"traceparent": "00-851649b20b5a3a3380e47b5250fa6b49-8cfb01fd9a1cd546-03"}');
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 1, 2, 'committed', NULL, '{"traceparent": "00-4879b8d446a7860d53e9f16786b0a191-8c614183a3b2cc2d-03"}');
INSERT INTO public.outbox_tpc_transaction VALUES ('orders', 2, 1, NULL, NULL, '{"traceparent": "00-08939b2c782bc63e254d1bbbd2e9d82b-ebb3d28937c1a346-03"}');
INSERT INTO public.tpc_application VALUES ('orders', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.0.1', 'ledger', 0, 1795904653.6864145, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.0.1', 'notifier', 1, 1795904653.6864145, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.1', 'ledger', 0, 1795904653.7960982, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.1', 'notifier', 1, 1795904653.7960982, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.2', 'ledger', 0, 1795904653.8830187, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.1.2', 'notifier', 1, 1795904653.8830187, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.2.1', 'notifier', 1, NULL, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_delivery VALUES ('orders.2.1', 'ledger', 0, NULL, 0, NULL, NULL, false, NULL, NULL);
INSERT INTO public.tpc_receipt VALUES ('orders.1.2', 'notifier', '0.0', 1, 'commit', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 'null');
INSERT INTO public.tpc_receipt VALUES ('orders.1.2', 'ledger', '0.0', 0, 'commit', 1, 'sha-256=:rFeJApQ9VxghNDceNmS3TJPR8is3ajSy0psZIpkIFBg=:', 'null');
INSERT INTO public.tpc_receipt VALUES ('orders.2.1', 'notifier', '0.0', 1, 'commit', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 'null');
INSERT INTO public.tpc_receipt VALUES ('orders.2.1', 'ledger', '0.0', 0, 'commit', 1, 'sha-256=:knPcw8XVFrWSNKZLR5iRrGZLZZ4Be44+t2X0ZYx4Dko=:', 'null');
INSERT INTO public.tpc_run VALUES ('orders', 'a-run', 1, 1795904653.4450667, 0);
INSERT INTO public.tpc_schema VALUES (1, 'b727f67a6db548d89884e5117b1e3aa9', 'log');
INSERT INTO public.tpc_transaction VALUES ('orders.0.1', 'orders', 0, 1, 'a-run', 'committed', 'commit', 1795904653.4509335, 1795904653.6317391, 1795904653.6864145, 900, 1795905553.444306, '{"traceparent":"00-89bfb8060b00c0d157a24411202addcb-7aa3a8f51887f0f7-03"}', NULL, NULL, 1795904653301334030, '{"service.instance.id": "2dd831bb-0a0e-4f82-a30b-27a9782a62e2", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ledger"}', NULL, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, '{"ledger":["3ee0b2ef56714e5db7a6d053403345ef","http://127.0.0.1:34943"],"notifier":["04d2ba2282574a97ae695e28e2892c6d","http://127.0.0.1:38525"]}', '3af5e547d0fdae8daf5a7487292eb1c0f6c297eb4a82b1a6a073d39e3409862f');
INSERT INTO public.tpc_transaction VALUES ('orders.1.1', 'orders', 1, 1, 'a-run', 'aborted', 'abort', 1795904653.7023878, 1795904653.7490184, 1795904653.7960982, 900, 1795905553.699758, '{"traceparent":"00-851649b20b5a3a3380e47b5250fa6b49-f63adeb51db84030-03"}', NULL, NULL, 1795904653696885067, '{"service.instance.id": "2dd831bb-0a0e-4f82-a30b-27a9782a62e2", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ledger"}', NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, 'error', 'while it was written: RuntimeError: a task failed', NULL, NULL, '{"ledger":["3ee0b2ef56714e5db7a6d053403345ef","http://127.0.0.1:34943"],"notifier":["04d2ba2282574a97ae695e28e2892c6d","http://127.0.0.1:38525"]}', '126733f82da029742e484be771d2884cba947df26b253bbd6584d760040a8443');
INSERT INTO public.tpc_transaction VALUES ('orders.1.2', 'orders', 1, 2, 'a-run', 'committed', 'commit', 1795904653.806208, 1795904653.8598292, 1795904653.8830187, 900, 1795905553.805634, '{"traceparent":"00-4879b8d446a7860d53e9f16786b0a191-368535af4413db15-03"}', '00-851649b20b5a3a3380e47b5250fa6b49-f63adeb51db84030-03', NULL, 1795904653803369325, '{"service.instance.id": "2dd831bb-0a0e-4f82-a30b-27a9782a62e2", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ledger"}', NULL, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, '{"ledger":["3ee0b2ef56714e5db7a6d053403345ef","http://127.0.0.1:34943"],"notifier":["04d2ba2282574a97ae695e28e2892c6d","http://127.0.0.1:38525"]}', '84b1a92077d1dd640d2f2377dc17474e3e92645a126f0a06d3723ecc0605ba52');
INSERT INTO public.tpc_transaction VALUES ('orders.2.1', 'orders', 2, 1, 'a-run', 'committing', 'commit', 1795904653.8910122, 1795904653.9518166, NULL, 900, 1795905553.890515, '{"traceparent":"00-08939b2c782bc63e254d1bbbd2e9d82b-186ceac3f3f5e333-03"}', NULL, NULL, 1795904653888319911, '{"service.instance.id": "2dd831bb-0a0e-4f82-a30b-27a9782a62e2", "host.name": "vm", "ip": "vm", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "1.45.1", "service.name": "ledger"}', NULL, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, '{"ledger":["3ee0b2ef56714e5db7a6d053403345ef","http://127.0.0.1:34943"],"notifier":["04d2ba2282574a97ae695e28e2892c6d","http://127.0.0.1:38525"]}', '7d1618e3182e900487140019f3cf5937e69f5851cabd3dd63af9294004dc0efd');
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
    ADD CONSTRAINT outbox_tpc_quarantine_pkey PRIMARY KEY (key, trouble);
ALTER TABLE ONLY public.outbox_tpc_queue
    ADD CONSTRAINT outbox_tpc_queue_pkey PRIMARY KEY (application, batch, partition, task_attempt, tag);
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
ALTER TABLE ONLY public.tpc_presence
    ADD CONSTRAINT tpc_presence_pkey PRIMARY KEY (application, run);
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
