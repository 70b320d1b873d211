"""Keys that say by their first characters who issued them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from refold.redaction.checks import Validator
from refold.redaction.checks.secrets import issued, mixed, varied
from refold.redaction.rules.rule import LEAD, WORD, Rule

# Samples are made of these, so that none is anybody's.
MIXED = "q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaXoIiGkMzPnQvSyBwDcFrJhLeUt5A8" * 5
LOWER = "7f3a9c1e5b8d2046ace8137f95bd0462" * 6

_SHORT: Final[Mapping[str, str]] = {
    "ALNUM": "[A-Za-z0-9]",
    "TOKEN": r"[A-Za-z0-9_\-]",
    "HEX": "[A-Fa-f0-9]",
    "B64": "[A-Za-z0-9+/]",
}
# Who issues a key, how closely the whole of it is looked at (the less, the
# rarer its prefix is otherwise), what follows the prefix, and the prefixes.
_ISSUERS: Final = r"""
# Clouds
aws                  issued  [A-Z0-9]{16}                 AKIA ASIA ABIA ACCA
aws.bedrock          issued  B64{100,400}={0,2}           ABSK
aws.bedrock.short    issued  B64{40,2048}={0,2}           bedrock-api-key-
google               issued  TOKEN{35}                    AIza
google.oauth         issued  TOKEN{20,512}                ya29. GOCSPX-
alibaba              varied  ALNUM{12,24}                 LTAI
tencent              varied  ALNUM{13,48}                 AKID
volcengine           varied  ALNUM{30,64}                 AKLT
baidu                issued  ALNUM{16,32}/[a-f0-9]{40}    bce-v3/ALTAK-
yandex               issued  TOKEN{35,38}                 AQVN
yandex.aws           mixed   TOKEN{37}                    YCA YCM YCN YCO YCP
digitalocean         issued  HEX{64}                      dop_v1_ doo_v1_ dor_v1_
heroku               issued  TOKEN{50,64}                 HRKU-AA
fly                  issued  [A-Za-z0-9+/_\-]{40,1024}={0,3} fo1_ fm1r_ fm1a_ fm2_
netlify              issued  ALNUM{36,64}                 nfp_ nfc_ nfo_ nfu_ nfb_
vercel               varied  TOKEN{24,128}                vcp_ vci_ vca_ vcr_ vck_
    vercel_blob_rw_
scalingo             issued  TOKEN{48}                    tk-us- tk-eu-
render               varied  ALNUM{28,64}                 rnd_
cloudflare.origin    issued  [a-f0-9]{24}-[a-f0-9]{146}   v1.0-
cloudflare           issued  TOKEN{40,64}                 cfat_ cfut_ cfk_
# Code
github               issued  ALNUM{30,255}                ghp_ gho_ ghu_ ghs_ ghr_
github.fine          issued  [A-Za-z0-9_]{22,255}         github_pat_
gitlab               issued  [A-Za-z0-9_\-.]{20,320}      glpat- gldt- glrt- glptt-
    glft- glffct- glimt- glagent- gloas- glsoat- glcbt- glwt- glrtr-
gitlab.runner        issued  TOKEN{20,40}                 GR1348941
bitbucket            varied  [A-Za-z0-9_\-=]{20,400}      ATBB ATCTT3 ATATT3 ATOA
npm                  issued  ALNUM{36}                    npm_
pypi                 issued  TOKEN{50,1024}               pypi-
rubygems             issued  HEX{48}                      rubygems_
nuget                varied  [a-z0-9]{43}                 oy2
crates               mixed   ALNUM{32}                    cio ciov
clojars              issued  [a-z0-9]{60}                 CLOJARS_
docker               issued  TOKEN{20,64}                 dckr_pat_ dckr_oat_
sourcegraph          issued  [A-Fa-f0-9_local]{40,62}     sgp_ slk_ sgd_
jfrog                issued  ALNUM{50,80}                 AKCp cmVmdGtu cmVmd
pulumi               issued  HEX{40}                      pul-
infracost            issued  ALNUM{32}                    ico-
circleci             issued  ALNUM{16,24}_HEX{40}         CCIPAT_ CCIPRJ_
buildkite            issued  ALNUM{32,64}                 bkua_ bkaj_ bkct_ bkpt_
sonar                issued  ALNUM{40}                    squ_ sqa_ sqp_
octopus              varied  [A-Z0-9]{25,32}              API-
harness              issued  TOKEN{22}\.ALNUM{24}\.ALNUM{20} pat. sat.
snyk                 issued  [A-Za-z0-9_\-.]{40,256}      snyk_uat. snyk_sat.
codecov              varied  TOKEN{32,64}                 codecov_
# Models
anthropic            issued  TOKEN{20,255}                sk-ant-
openai               issued  TOKEN{20,255}                sk-proj- sk-svcacct-
    sk-admin- sk-or- sk-lf- sk-None-
# openai.plain is also what many others issue that speak its protocol.
openai.plain         issued  ALNUM{20,255}                sk-
langfuse             issued  HEX{8}-[a-f0-9-]{27}         pk-lf-
langsmith            issued  [a-f0-9_]{32,64}             lsv2_pt_ lsv2_sk_ ls__
xai                  issued  ALNUM{40,128}                xai-
groq                 issued  ALNUM{40,64}                 gsk_
perplexity           issued  ALNUM{32,64}                 pplx-
replicate            issued  ALNUM{36,40}                 r8_
hugging-face         issued  ALNUM{30,64}                 hf_ api_org_
pinecone             issued  TOKEN{40,128}                pcsk_
tavily               issued  [A-Za-z0-9\-]{20,64}         tvly-
firecrawl            issued  HEX{32}                      fc-
nvidia               issued  TOKEN{60,80}                 nvapi-
cerebras             issued  ALNUM{40,64}                 csk-
elevenlabs           issued  HEX{48}                      sk_
jina                 issued  TOKEN{50,80}                 jina_
wandb                issued  TOKEN{40,128}                wandb_v1_
logfire              issued  [A-Za-z0-9_]{30,80}          pylf_v1_
e2b                  issued  HEX{40}                      e2b_
# Messages
slack                issued  [A-Za-z0-9\-%]{10,400}       xoxb- xoxp- xoxa- xoxe-
    xoxr- xoxs- xoxo- xoxc- xoxd- xapp- xoxe.xoxb- xoxe.xoxp- xwfp-
sendgrid             issued  TOKEN{16,32}\.TOKEN{16,64}   SG.
mailgun              issued  HEX{32}                      key- pubkey-
brevo                issued  [a-f0-9]{64}-ALNUM{16}       xkeysib- xsmtpsib-
resend               mixed   ALNUM{8}_ALNUM{20,32}        re_
# Money
stripe               issued  ALNUM{10,255}                sk_live_ sk_test_ rk_live_
    rk_test_ sk_prod_ rk_prod_
stripe.webhook       issued  [A-Za-z0-9+/=]{24,128}       whsec_
square               varied  TOKEN{22,80}                 sq0atp- sq0csp- sq0idp- EAAA
paypal               issued  [a-z0-9]{16}\$[a-f0-9]{32}   access_token$production$
    access_token$sandbox$
shopify              issued  HEX{32}                      shpat_ shpca_ shppa_ shpss_
    shptka_
razorpay             issued  ALNUM{14,24}                 rzp_live_ rzp_test_
flutterwave          issued  ALNUM{12,32}(?:-X)?          FLWSECK_TEST- FLWSECK-
    FLWPUBK_TEST- FLWPUBK-
easypost             issued  ALNUM{54}                    EZAK EZTK
duffel               issued  [A-Za-z0-9_\-=]{40,50}       duffel_test_ duffel_live_
lob                  issued  HEX{31}                      live_pub_ test_pub_
lob.secret           issued  HEX{35}                      live_ test_
plaid                issued  [a-f0-9]{8}-[a-f0-9-]{27}    access-sandbox-
    access-development- access-production-
shippo               issued  HEX{40}                      shippo_live_ shippo_test_
# Data
databricks           issued  HEX{32}(?:-[0-9])?           dapi
planetscale          issued  [A-Za-z0-9_.=\-]{32,64}      pscale_tkn_ pscale_pw_
    pscale_oauth_
supabase             issued  HEX{40}                      sbp_ sbp_oauth_
supabase.key         issued  TOKEN{20,64}                 sb_secret_ sb_publishable_
neon                 mixed   ALNUM{12,80}                 napi_ npg_
airtable             issued  ALNUM{14}\.[a-f0-9]{64}      pat
clickhouse           mixed   ALNUM{38}                    4b1d
contentful           issued  TOKEN{40,64}                 CFPAT-
vault                issued  TOKEN{24,300}                hvs. hvb. hvr.
doppler              issued  [A-Za-z0-9._\-]{40,64}       dp.pt. dp.st. dp.ct. dp.sa.
    dp.scim. dp.audit.
1password.service    issued  B64{60,2048}={0,3}           ops_eyJ
age                  issued  [A-Z0-9]{58}                 AGE-SECRET-KEY-1
prefect              issued  ALNUM{36}                    pnu_ pnb_
tailscale            issued  [A-Za-z0-9\-]{16,80}         tskey- tskey-auth-
    tskey-api-
openshift            mixed   TOKEN{43}                    sha256~
# Watch
grafana              issued  [A-Za-z0-9+/_]{32,400}={0,3} glc_ glsa_
newrelic             issued  [A-Za-z0-9\-]{19,64}         NRAK- NRJS- NRII- NRSP-
    NRRA- NRIQ-
sentry               issued  [A-Za-z0-9+/=_\-]{40,800}    sntrys_
sentry.user          issued  HEX{64}                      sntryu_
dynatrace            issued  [A-Z0-9]{8,24}\.[A-Z0-9]{64} dt0c01. dt0s01. dt0s02.
rootly               issued  HEX{64}                      rootly_
posthog              issued  TOKEN{40,64}                 phc_ phx_ phs_
honeycomb            issued  [a-z0-9]{40,80}              hcaik_ hcalk_ hcxik_ hcxlk_
    hcamk_
# Work
linear               issued  ALNUM{32,80}                 lin_api_ lin_oauth_
notion               mixed   ALNUM{40,64}                 ntn_ secret_
figma                issued  TOKEN{36,64}                 figd_ figo_ figu_
postman              issued  HEX{24}-HEX{34}              PMAK-
readme               issued  [a-z0-9]{64,80}              rdme_
hubspot              issued  [a-f0-9]{8}-[a-f0-9-]{27}    pat-na1- pat-eu1- pat-na2-
typeform             issued  [A-Za-z0-9_.=\-]{40,64}      tfp_
frameio              issued  [A-Za-z0-9_\-=]{64}          fio-u-
facebook             mixed   ALNUM{90,400}                EAA
dropbox              issued  [A-Za-z0-9_\-=]{60,1400}     sl.u. sl.
mapbox               issued  ALNUM{20,256}\.TOKEN{20,64}  sk.eyJ pk.eyJ tk.eyJ
adobe                issued  [a-z0-9_]{32}                p8e-
intra42              issued  HEX{64}                      s-s4t2ud- s-s4t2af-
settlemint           issued  ALNUM{16}                    sm_aat_ sm_pat_ sm_sat_
defined              issued  [A-Za-z0-9_=\-]{26}-[A-Za-z0-9_=\-]{52} dnkey-
apify                issued  ALNUM{30,46}                 apify_api_
clerk                issued  ALNUM{20,64}                 ak_live_
launchdarkly         issued
    [a-f0-9]{8}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{12} sdk- api- mob-
heroku.old           issued  [a-f0-9]{8}-[a-f0-9-]{27}    HRKU-
deno                 issued  ALNUM{36}                    ddp_ ddo_ ddw_
"""
# Prefixes that other things have too.
_OTHERS: Final = r"""
voyage               mixed   TOKEN{43}                    pa-
mandrill             mixed   TOKEN{22}                    md-
ionic                mixed   ALNUM{42}                    ion_
fireworks            mixed   ALNUM{22,40}                 fw_
coda                 mixed   TOKEN{36}                    coda_
composio             varied  HEX{32,64}                   cmp_
statuspage           varied  HEX{32,64}                   OAUTH-
appwrite             issued  HEX{100,256}                 standard_
ngrok                mixed   ALNUM{36,64}                 ngrok_
zuplo                issued  [a-z0-9]{32}_[a-z0-9]{8}     zpka_
gocardless           mixed   TOKEN{40}                    live_
vault.old            mixed   ALNUM{24}                    s.
"""
_JUDGES: Final[Mapping[str, Validator]] = {
    "issued": issued,
    "varied": varied,
    "mixed": mixed,
}
_CLASS = re.compile(r"(\[[^\]]+\])\{([0-9]+)(?:,([0-9]+))?\}")
# Longer ones would cost an automaton more than they spare it.
_ENOUGH: Final = 20


def _rules(table: str) -> Iterator[Rule]:
    for row in table.replace("\n    ", " ").splitlines():
        if row and not row.startswith("# "):
            yield _rule(*row.split())


def _rule(name: str, judge: str, tail: str, *prefixes: str) -> Rule:
    for short, members in _SHORT.items():
        tail = tail.replace(f"{short}{{", f"{members}{{")
    # As many characters of the tail as every tail begins with.
    head = _CLASS.match(tail)
    then = f"{head[1]}{{{min(int(head[2]), _ENOUGH)}}}" if head else ""
    sample = _sample(tail)
    return Rule(
        id=f"key.{name}",
        type="API_KEY",
        gate=tuple(prefix.lower() for prefix in prefixes),
        lead=LEAD,
        then=then,
        pattern=rf"{WORD}(?:{'|'.join(map(re.escape, prefixes))}){tail}"
        r"(?<!\.)(?![A-Za-z0-9])",
        validator=_JUDGES[judge],
        priority=80,
        examples=tuple(f"is «{prefix}{sample}»." for prefix in prefixes),
        counter_examples=(f"x{prefixes[0]}{sample}", prefixes[0] + "x" * len(sample)),
    )


def _sample(tail: str) -> str:
    """What matches ``tail``: each class as often as it must be, or 24 times."""
    needed = re.sub(r"\(\?:.*\)\?|=\{0,[0-9]\}", "", tail)
    return _CLASS.sub(_members, needed).replace("\\", "")


def _members(found: re.Match[str]) -> str:
    members, least, most = found.groups()
    often = min(max(int(least), 24), int(most or least))
    return "".join(re.findall(members, MIXED * 2))[:often]


VENDORS = tuple(_rules(_ISSUERS))
OTHER_VENDORS = tuple(_rules(_OTHERS))
