"""Keys that say by their first characters who issued them."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from refold.redaction.checks.secrets import issued, mixed, varied
from refold.redaction.rules.rule import LEAD, WORD, Rule, Validator

MIXED = "q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaXoIiGkMzPnQvSyBwDcFrJhLeUt5A8" * 5
LOWER = "7f3a9c1e5b8d2046ace8137f95bd0462" * 6
UPPER = "Q7ZT4KX3VB6LM2NP5RSW" * 9
ALNUM, TOKEN, HEX = "[A-Za-z0-9]", r"[A-Za-z0-9_\-]", "[A-Fa-f0-9]"
B64 = "[A-Za-z0-9+/]"


class Issuer(NamedTuple):
    """``tail`` follows one of ``prefixes``; ``sample`` is one, made up.

    judge: how closely the whole is looked at, by how seldom the prefix is by chance.
    """

    name: str
    prefixes: tuple[str, ...]
    tail: str
    sample: str
    judge: Literal["issued", "varied", "mixed"] = "issued"
    then: str = ""


MACHINES: tuple[Issuer, ...] = (
    # Clouds
    Issuer("aws", ("AKIA", "ASIA", "ABIA", "ACCA"), "[A-Z0-9]{16}", UPPER[:16]),
    Issuer("aws.bedrock", ("ABSK",), f"{B64}{{100,400}}={{0,2}}", MIXED[:128]),
    Issuer(
        "aws.bedrock.short",
        ("bedrock-api-key-",),
        f"{B64}{{40,2048}}={{0,2}}",
        MIXED[:80],
    ),
    Issuer("google", ("AIza",), f"{TOKEN}{{35}}", MIXED[:35]),
    Issuer("google.oauth", ("ya29.", "GOCSPX-"), r"[A-Za-z0-9_\-]{20,512}", MIXED[:40]),
    Issuer("alibaba", ("LTAI",), f"{ALNUM}{{12,24}}", MIXED[:20], "varied"),
    Issuer("tencent", ("AKID",), f"{ALNUM}{{13,48}}", MIXED[:32], "varied"),
    Issuer("volcengine", ("AKLT",), f"{ALNUM}{{30,64}}", MIXED[:44], "varied"),
    Issuer(
        "baidu",
        ("bce-v3/ALTAK-",),
        r"[A-Za-z0-9]{16,32}/[a-f0-9]{40}",
        f"{MIXED[:21]}/{LOWER[:40]}",
    ),
    Issuer("yandex", ("AQVN",), f"{TOKEN}{{35,38}}", MIXED[:36]),
    Issuer(
        "yandex.aws",
        ("YCA", "YCM", "YCN", "YCO", "YCP"),
        f"{TOKEN}{{37}}",
        MIXED[:37],
        "mixed",
    ),
    Issuer(
        "digitalocean", ("dop_v1_", "doo_v1_", "dor_v1_"), f"{HEX}{{64}}", LOWER[:64]
    ),
    Issuer("heroku", ("HRKU-AA",), f"{TOKEN}{{50,64}}", MIXED[:58]),
    Issuer(
        "fly",
        ("fo1_", "fm1r_", "fm1a_", "fm2_"),
        r"[A-Za-z0-9+/_\-]{40,1024}={0,3}",
        MIXED[:120],
    ),
    Issuer(
        "netlify",
        ("nfp_", "nfc_", "nfo_", "nfu_", "nfb_"),
        f"{ALNUM}{{36,64}}",
        MIXED[:40],
    ),
    Issuer(
        "vercel",
        ("vcp_", "vci_", "vca_", "vcr_", "vck_", "vercel_blob_rw_"),
        f"{TOKEN}{{24,128}}",
        MIXED[:48],
        "varied",
    ),
    Issuer("scalingo", ("tk-us-", "tk-eu-"), f"{TOKEN}{{48}}", MIXED[:48]),
    Issuer("render", ("rnd_",), f"{ALNUM}{{28,64}}", MIXED[:32], "varied"),
    Issuer(
        "cloudflare.origin",
        ("v1.0-",),
        r"[a-f0-9]{24}-[a-f0-9]{146}",
        f"{LOWER[:24]}-{LOWER[:146]}",
    ),
    Issuer("cloudflare", ("cfat_", "cfut_", "cfk_"), f"{TOKEN}{{40,64}}", MIXED[:48]),
    # Code
    Issuer(
        "github",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
        f"{ALNUM}{{30,255}}",
        MIXED[:36],
    ),
    Issuer("github.fine", ("github_pat_",), "[A-Za-z0-9_]{22,255}", MIXED[:60]),
    Issuer(
        "gitlab",
        (
            *("glpat-", "gldt-", "glrt-", "glptt-", "glft-", "glffct-", "glimt-"),
            *("glagent-", "gloas-", "glsoat-", "glcbt-", "glwt-", "glrtr-"),
        ),
        r"[A-Za-z0-9_\-.]{20,320}",
        MIXED[:20],
    ),
    Issuer("gitlab.runner", ("GR1348941",), f"{TOKEN}{{20,40}}", MIXED[:20]),
    Issuer(
        "bitbucket",
        ("ATBB", "ATCTT3", "ATATT3", "ATOA"),
        r"[A-Za-z0-9_\-=]{20,400}",
        MIXED[:60],
        "varied",
    ),
    Issuer("npm", ("npm_",), f"{ALNUM}{{36}}", MIXED[:36]),
    Issuer("pypi", ("pypi-",), f"{TOKEN}{{50,1024}}", "AgEI" + MIXED[:60]),
    Issuer("rubygems", ("rubygems_",), f"{HEX}{{48}}", LOWER[:48]),
    Issuer("nuget", ("oy2",), "[a-z0-9]{43}", LOWER[:43], "varied"),
    Issuer("crates", ("cio", "ciov"), f"{ALNUM}{{32}}", MIXED[:32], "mixed"),
    Issuer("clojars", ("CLOJARS_",), "[a-z0-9]{60}", LOWER[:60]),
    Issuer("docker", ("dckr_pat_", "dckr_oat_"), f"{TOKEN}{{20,64}}", MIXED[:27]),
    Issuer(
        "sourcegraph", ("sgp_", "slk_", "sgd_"), "[A-Fa-f0-9_local]{40,62}", LOWER[:40]
    ),
    Issuer("jfrog", ("AKCp", "cmVmdGtu", "cmVmd"), f"{ALNUM}{{50,80}}", MIXED[:69]),
    Issuer("pulumi", ("pul-",), f"{HEX}{{40}}", LOWER[:40]),
    Issuer("infracost", ("ico-",), f"{ALNUM}{{32}}", MIXED[:32]),
    Issuer(
        "circleci",
        ("CCIPAT_", "CCIPRJ_"),
        f"{ALNUM}{{16,24}}_[A-Fa-f0-9]{{40}}",
        f"{MIXED[:22]}_{LOWER[:40]}",
    ),
    Issuer(
        "buildkite",
        ("bkua_", "bkaj_", "bkct_", "bkpt_"),
        f"{ALNUM}{{32,64}}",
        LOWER[:40],
    ),
    Issuer("sonar", ("squ_", "sqa_", "sqp_"), f"{ALNUM}{{40}}", LOWER[:40]),
    Issuer("octopus", ("API-",), "[A-Z0-9]{25,32}", UPPER[:26], "varied"),
    Issuer(
        "harness",
        ("pat.", "sat."),
        r"[A-Za-z0-9_\-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}",
        f"{MIXED[:22]}.{MIXED[:24]}.{MIXED[:20]}",
    ),
    Issuer("snyk", ("snyk_uat.", "snyk_sat."), r"[A-Za-z0-9_\-.]{40,256}", MIXED[:60]),
    Issuer("codecov", ("codecov_",), f"{TOKEN}{{32,64}}", MIXED[:40], "varied"),
    # Models
    Issuer("anthropic", ("sk-ant-",), f"{TOKEN}{{20,255}}", "api03-" + MIXED[:60]),
    Issuer(
        "openai",
        ("sk-proj-", "sk-svcacct-", "sk-admin-", "sk-or-", "sk-lf-", "sk-None-"),
        f"{TOKEN}{{20,255}}",
        MIXED[:60],
    ),
    # Also what many others issue that speak its protocol.
    Issuer("openai.plain", ("sk-",), f"{ALNUM}{{20,255}}", MIXED[:48]),
    Issuer(
        "langfuse",
        ("pk-lf-",),
        f"{HEX}{{8}}-[a-f0-9-]{{27}}",
        "7f3a9c1e-5b8d-4046-ace8-137f95bd0462",
    ),
    Issuer(
        "langsmith",
        ("lsv2_pt_", "lsv2_sk_", "ls__"),
        r"[a-f0-9_]{32,64}",
        f"{LOWER[:32]}_{LOWER[:10]}",
    ),
    Issuer("xai", ("xai-",), f"{ALNUM}{{40,128}}", MIXED[:80]),
    Issuer("groq", ("gsk_",), f"{ALNUM}{{40,64}}", MIXED[:52]),
    Issuer("perplexity", ("pplx-",), f"{ALNUM}{{32,64}}", MIXED[:48]),
    Issuer("replicate", ("r8_",), f"{ALNUM}{{36,40}}", MIXED[:37]),
    Issuer("hugging-face", ("hf_", "api_org_"), f"{ALNUM}{{30,64}}", MIXED[:34]),
    Issuer("pinecone", ("pcsk_",), f"{TOKEN}{{40,128}}", MIXED[:69]),
    Issuer("tavily", ("tvly-",), r"[A-Za-z0-9\-]{20,64}", MIXED[:32]),
    Issuer("firecrawl", ("fc-",), f"{HEX}{{32}}", LOWER[:32]),
    Issuer("nvidia", ("nvapi-",), f"{TOKEN}{{60,80}}", MIXED[:64]),
    Issuer("cerebras", ("csk-",), f"{ALNUM}{{40,64}}", MIXED[:48]),
    Issuer("elevenlabs", ("sk_",), f"{HEX}{{48}}", LOWER[:48]),
    Issuer("jina", ("jina_",), f"{TOKEN}{{50,80}}", MIXED[:60]),
    Issuer("wandb", ("wandb_v1_",), f"{TOKEN}{{40,128}}", MIXED[:70]),
    Issuer("logfire", ("pylf_v1_",), r"[A-Za-z0-9_]{30,80}", "us_" + MIXED[:40]),
    Issuer("e2b", ("e2b_",), f"{HEX}{{40}}", LOWER[:40]),
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


_HEAD = re.compile(r"(\[[^\]]+\])\{([0-9]+)")
# Longer ones would cost an automaton more than they spare it.
_ENOUGH = 20
_JUDGES: dict[str, Validator] = {"issued": issued, "varied": varied, "mixed": mixed}


class _Start(NamedTuple):
    gate: tuple[str, ...]
    then: str


def _start(issuer: Issuer) -> _Start:
    """Each prefix, and as many characters of its tail as every tail begins with."""
    head = _HEAD.match(issuer.tail)
    then = f"{head[1]}{{{min(int(head[2]), _ENOUGH)}}}" if head else ""
    return _Start(tuple(p.lower() for p in issuer.prefixes), issuer.then or then)


def _rule(issuer: Issuer) -> Rule:
    gate, then = _start(issuer)
    prefixes = "|".join(re.escape(prefix) for prefix in issuer.prefixes)
    first = issuer.prefixes[0]
    return Rule(
        id=f"key.{issuer.name}",
        type="API_KEY",
        gate=gate,
        lead=LEAD,
        then=then,
        pattern=rf"{WORD}(?:{prefixes}){issuer.tail}(?<!\.)(?![A-Za-z0-9])",
        validator=_JUDGES[issuer.judge],
        priority=80,
        examples=tuple(f"is «{prefix}{issuer.sample}»." for prefix in issuer.prefixes),
        counter_examples=(
            f"x{first}{issuer.sample}",
            first + "x" * len(issuer.sample),
        ),
    )


VENDORS = tuple(_rule(issuer) for issuer in (*MACHINES, *SERVICES))
OTHER_VENDORS = tuple(_rule(issuer) for issuer in OTHER_ISSUERS)
