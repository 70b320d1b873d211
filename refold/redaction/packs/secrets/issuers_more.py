"""Who issues keys for the rest: messages, money, data, watching, work."""

from refold.redaction.packs.secrets.issuer import (
    ALNUM,
    B64,
    HEX,
    LOWER,
    MIXED,
    TOKEN,
    UPPER,
    Issuer,
)

SERVICES: tuple[Issuer, ...] = (
    # Messages
    Issuer(
        "slack",
        (
            *("xoxb-", "xoxp-", "xoxa-", "xoxe-", "xoxr-", "xoxs-", "xoxo-", "xoxc-"),
            *("xoxd-", "xapp-", "xoxe.xoxb-", "xoxe.xoxp-", "xwfp-"),
        ),
        r"[A-Za-z0-9\-%]{10,400}",
        "17-2839-" + MIXED[:24],
    ),
    Issuer(
        "sendgrid",
        ("SG.",),
        rf"{TOKEN}{{16,32}}\.{TOKEN}{{16,64}}",
        f"{MIXED[:22]}.{MIXED[:43]}",
    ),
    Issuer("mailgun", ("key-", "pubkey-"), f"{HEX}{{32}}", LOWER[:32]),
    Issuer(
        "brevo",
        ("xkeysib-", "xsmtpsib-"),
        r"[a-f0-9]{64}-[A-Za-z0-9]{16}",
        f"{LOWER[:64]}-{MIXED[:16]}",
    ),
    Issuer(
        "resend",
        ("re_",),
        r"[A-Za-z0-9]{8}_[A-Za-z0-9]{20,32}",
        f"{MIXED[:8]}_{MIXED[:24]}",
        "mixed",
    ),
    # Money
    Issuer(
        "stripe",
        ("sk_live_", "sk_test_", "rk_live_", "rk_test_", "sk_prod_", "rk_prod_"),
        f"{ALNUM}{{10,255}}",
        MIXED[:24],
    ),
    Issuer("stripe.webhook", ("whsec_",), "[A-Za-z0-9+/=]{24,128}", MIXED[:32]),
    Issuer(
        "square",
        ("sq0atp-", "sq0csp-", "sq0idp-", "EAAA"),
        f"{TOKEN}{{22,80}}",
        MIXED[:60],
        "varied",
    ),
    Issuer(
        "paypal",
        ("access_token$production$", "access_token$sandbox$"),
        r"[a-z0-9]{16}\$[a-f0-9]{32}",
        f"{LOWER[:16]}${LOWER[:32]}",
    ),
    Issuer(
        "shopify",
        ("shpat_", "shpca_", "shppa_", "shpss_", "shptka_"),
        f"{HEX}{{32}}",
        LOWER[:32],
    ),
    Issuer("razorpay", ("rzp_live_", "rzp_test_"), f"{ALNUM}{{14,24}}", MIXED[:14]),
    Issuer(
        "flutterwave",
        ("FLWSECK_TEST-", "FLWSECK-", "FLWPUBK_TEST-", "FLWPUBK-"),
        r"[A-Za-z0-9]{12,32}(?:-X)?",
        LOWER[:32] + "-X",
    ),
    Issuer("easypost", ("EZAK", "EZTK"), f"{ALNUM}{{54}}", MIXED[:54]),
    Issuer(
        "duffel",
        ("duffel_test_", "duffel_live_"),
        r"[A-Za-z0-9_\-=]{40,50}",
        MIXED[:43],
    ),
    Issuer("lob", ("live_pub_", "test_pub_"), f"{HEX}{{31}}", LOWER[:31]),
    Issuer("lob.secret", ("live_", "test_"), f"{HEX}{{35}}", LOWER[:35]),
    Issuer(
        "plaid",
        ("access-sandbox-", "access-development-", "access-production-"),
        r"[a-f0-9]{8}-[a-f0-9-]{27}",
        "7f3a9c1e-5b8d-4046-ace8-137f95bd0462",
    ),
    Issuer("shippo", ("shippo_live_", "shippo_test_"), f"{HEX}{{40}}", LOWER[:40]),
    # Data
    Issuer("databricks", ("dapi",), f"{HEX}{{32}}(?:-[0-9])?", LOWER[:32]),
    Issuer(
        "planetscale",
        ("pscale_tkn_", "pscale_pw_", "pscale_oauth_"),
        r"[A-Za-z0-9_.=\-]{32,64}",
        MIXED[:43],
    ),
    Issuer("supabase", ("sbp_", "sbp_oauth_"), f"{HEX}{{40}}", LOWER[:40]),
    Issuer(
        "supabase.key",
        ("sb_secret_", "sb_publishable_"),
        f"{TOKEN}{{20,64}}",
        MIXED[:31],
    ),
    Issuer("neon", ("napi_", "npg_"), f"{ALNUM}{{12,80}}", MIXED[:64], "mixed"),
    Issuer(
        "airtable",
        ("pat",),
        r"[A-Za-z0-9]{14}\.[a-f0-9]{64}",
        f"{MIXED[:14]}.{LOWER[:64]}",
    ),
    Issuer("clickhouse", ("4b1d",), f"{ALNUM}{{38}}", MIXED[:38], "mixed"),
    Issuer("contentful", ("CFPAT-",), f"{TOKEN}{{40,64}}", MIXED[:43]),
    Issuer("vault", ("hvs.", "hvb.", "hvr."), f"{TOKEN}{{24,300}}", MIXED[:92]),
    Issuer(
        "doppler",
        ("dp.pt.", "dp.st.", "dp.ct.", "dp.sa.", "dp.scim.", "dp.audit."),
        r"[A-Za-z0-9._\-]{40,64}",
        MIXED[:43],
    ),
    Issuer("1password.service", ("ops_eyJ",), f"{B64}{{60,2048}}={{0,3}}", MIXED[:250]),
    Issuer("age", ("AGE-SECRET-KEY-1",), "[A-Z0-9]{58}", UPPER[:58]),
    Issuer("prefect", ("pnu_", "pnb_"), f"{ALNUM}{{36}}", MIXED[:36]),
    Issuer(
        "tailscale",
        ("tskey-", "tskey-auth-", "tskey-api-"),
        r"[A-Za-z0-9\-]{16,80}",
        f"k{MIXED[:11]}CNTRL-{MIXED[:32]}",
    ),
    Issuer("openshift", ("sha256~",), f"{TOKEN}{{43}}", MIXED[:43], "mixed"),
    # Watching
    Issuer("grafana", ("glc_", "glsa_"), r"[A-Za-z0-9+/_]{32,400}={0,3}", MIXED[:41]),
    Issuer(
        "newrelic",
        ("NRAK-", "NRJS-", "NRII-", "NRSP-", "NRRA-", "NRIQ-"),
        r"[A-Za-z0-9\-]{19,64}",
        MIXED[:27],
    ),
    Issuer("sentry", ("sntrys_",), r"[A-Za-z0-9+/=_\-]{40,800}", "eyJ" + MIXED[:90]),
    Issuer("sentry.user", ("sntryu_",), f"{HEX}{{64}}", LOWER[:64]),
    Issuer(
        "dynatrace",
        ("dt0c01.", "dt0s01.", "dt0s02."),
        r"[A-Z0-9]{8,24}\.[A-Z0-9]{64}",
        f"{UPPER[:24]}.{UPPER[:64]}",
    ),
    Issuer("rootly", ("rootly_",), f"{HEX}{{64}}", LOWER[:64]),
    Issuer("posthog", ("phc_", "phx_", "phs_"), f"{TOKEN}{{40,64}}", MIXED[:43]),
    Issuer(
        "honeycomb",
        ("hcaik_", "hcalk_", "hcxik_", "hcxlk_", "hcamk_"),
        "[a-z0-9]{40,80}",
        LOWER[:58],
    ),
    # Work
    Issuer("linear", ("lin_api_", "lin_oauth_"), f"{ALNUM}{{32,80}}", MIXED[:40]),
    Issuer("notion", ("ntn_", "secret_"), f"{ALNUM}{{40,64}}", MIXED[:46], "mixed"),
    Issuer("figma", ("figd_", "figo_", "figu_"), f"{TOKEN}{{36,64}}", MIXED[:40]),
    Issuer(
        "postman",
        ("PMAK-",),
        f"{HEX}{{24}}-{HEX}{{34}}",
        f"{LOWER[:24]}-{LOWER[:34]}",
    ),
    Issuer("readme", ("rdme_",), "[a-z0-9]{64,80}", LOWER[:70]),
    Issuer(
        "hubspot",
        ("pat-na1-", "pat-eu1-", "pat-na2-"),
        r"[a-f0-9]{8}-[a-f0-9-]{27}",
        "7f3a9c1e-5b8d-4046-ace8-137f95bd0462",
    ),
    Issuer("typeform", ("tfp_",), r"[A-Za-z0-9_.=\-]{40,64}", MIXED[:59]),
    Issuer("frameio", ("fio-u-",), r"[A-Za-z0-9_\-=]{64}", MIXED[:64]),
    Issuer(
        "facebook",
        ("EAA",),
        f"{ALNUM}{{90,400}}",
        "CEdEose0cBA" + MIXED[:120],
        "mixed",
    ),
    Issuer("dropbox", ("sl.u.", "sl."), r"[A-Za-z0-9_\-=]{60,1400}", MIXED[:135]),
    Issuer(
        "mapbox",
        ("sk.eyJ", "pk.eyJ", "tk.eyJ"),
        rf"[A-Za-z0-9]{{20,256}}\.{TOKEN}{{20,64}}",
        f"{MIXED[:60]}.{MIXED[:22]}",
    ),
    Issuer("adobe", ("p8e-",), "[a-z0-9_]{32}", LOWER[:32]),
    Issuer("intra42", ("s-s4t2ud-", "s-s4t2af-"), f"{HEX}{{64}}", LOWER[:64]),
    Issuer(
        "settlemint", ("sm_aat_", "sm_pat_", "sm_sat_"), f"{ALNUM}{{16}}", MIXED[:16]
    ),
    Issuer(
        "defined",
        ("dnkey-",),
        r"[A-Za-z0-9_=\-]{26}-[A-Za-z0-9_=\-]{52}",
        f"{MIXED[:26]}-{MIXED[:52]}",
    ),
    Issuer("apify", ("apify_api_",), f"{ALNUM}{{30,46}}", MIXED[:36]),
    Issuer("clerk", ("ak_live_",), f"{ALNUM}{{20,64}}", MIXED[:40]),
    Issuer(
        "launchdarkly",
        ("sdk-", "api-", "mob-"),
        r"[a-f0-9]{8}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{12}",
        "7f3a9c1e-5b8d-4046-ace8-137f95bd0462",
    ),
    Issuer(
        "heroku.old",
        ("HRKU-",),
        r"[a-f0-9]{8}-[a-f0-9-]{27}",
        "7f3a9c1e-5b8d-4046-ace8-137f95bd0462",
    ),
    Issuer("deno", ("ddp_", "ddo_", "ddw_"), f"{ALNUM}{{36}}", MIXED[:36]),
)

# Prefixes that other things have too.
OTHER_ISSUERS: tuple[Issuer, ...] = (
    Issuer("voyage", ("pa-",), f"{TOKEN}{{43}}", MIXED[:43], "mixed"),
    Issuer("mandrill", ("md-",), f"{TOKEN}{{22}}", MIXED[:22], "mixed"),
    Issuer("ionic", ("ion_",), f"{ALNUM}{{42}}", MIXED[:42], "mixed"),
    Issuer("fireworks", ("fw_",), f"{ALNUM}{{22,40}}", MIXED[:24], "mixed"),
    Issuer("coda", ("coda_",), f"{TOKEN}{{36}}", MIXED[:36], "mixed"),
    Issuer("composio", ("cmp_",), f"{HEX}{{32,64}}", LOWER[:48], "varied"),
    Issuer("statuspage", ("OAUTH-",), f"{HEX}{{32,64}}", LOWER[:32], "varied"),
    Issuer("appwrite", ("standard_",), f"{HEX}{{100,256}}", LOWER[:128]),
    Issuer("ngrok", ("ngrok_",), f"{ALNUM}{{36,64}}", MIXED[:48], "mixed"),
    Issuer(
        "zuplo", ("zpka_",), "[a-z0-9]{32}_[a-z0-9]{8}", f"{LOWER[:32]}_{LOWER[:8]}"
    ),
    Issuer("gocardless", ("live_",), f"{TOKEN}{{40}}", MIXED[:40], "mixed"),
    Issuer("vault.old", ("s.",), f"{ALNUM}{{24}}", MIXED[:24], "mixed"),
)
