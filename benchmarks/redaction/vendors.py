"""Made-up keys of many vendors, by the formats that the vendors have made known.

Written without a look at the rules of Refold, and to stay so: what rules are tuned to
must not be written by them.  Held out are every second vendor and half the carriers.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from benchmarks.redaction.credentials import LOWER, URL64, run
from benchmarks.redaction.shapes import filled

Maker: TypeAlias = Callable[[random.Random], str]


@dataclass(frozen=True, slots=True)
class Vendor:
    """One kind of key: who gives it out, under which name, and how it looks.

    bare: whether the key can be told from other text without a name beside it.
    """

    name: str
    variable: str
    make: Maker
    bare: bool = True


def _mapbox(rng: random.Random) -> str:
    claims = json.dumps({"u": run(rng, 8, LOWER), "a": run(rng, 20, LOWER)})
    body = base64.urlsafe_b64encode(claims.encode()).decode().rstrip("=")
    return f"sk.{body}.{run(rng, 22, URL64)}"


def _one_password(rng: random.Random) -> str:
    claims = json.dumps({"signInAddress": "x.1p.com", "secret": run(rng, 160)})
    return "ops_" + base64.b64encode(claims.encode()).decode()


def _discord(rng: random.Random) -> str:
    number = str(rng.randint(10**17, 10**18)).encode()
    head = base64.b64encode(number).decode().rstrip("=")
    return f"{head}.{run(rng, 6, URL64)}.{run(rng, 38, URL64)}"


def _vendor(line: str) -> Vendor:
    name, variable, template, *rest = line.split()
    return Vendor(name, variable, partial(filled, template), "context" not in rest)


# name, variable, format; ``context`` where nothing in the key itself gives it away.
_TABLE = """\
aws-access-key AWS_ACCESS_KEY_ID AKIA{t16}
aws-temporary-key AWS_ACCESS_KEY_ID ASIA{t16}
aws-secret AWS_SECRET_ACCESS_KEY {b40} context
aws-session AWS_SESSION_TOKEN IQoJb3JpZ2luX2Vj{b300} context
azure-storage AZURE_STORAGE_KEY {b86}== context
azure-client-secret AZURE_CLIENT_SECRET {A3}8Q~{w34}
google-api-key GOOGLE_API_KEY AIza{w35}
google-oauth-secret GOOGLE_CLIENT_SECRET GOCSPX-{w28}
google-access-token GOOGLE_ACCESS_TOKEN ya29.a0A{w140}
github-classic GITHUB_TOKEN ghp_{A36}
github-fine-grained GH_TOKEN github_pat_{A22}_{A59}
github-server GITHUB_TOKEN ghs_{A36}
gitlab-personal GITLAB_TOKEN glpat-{w20}
gitlab-runner RUNNER_TOKEN glrt-{w20}
gitlab-deploy DEPLOY_TOKEN gldt-{w20}
slack-bot SLACK_BOT_TOKEN xoxb-{d12}-{d13}-{A24}
slack-app SLACK_APP_TOKEN xapp-1-A{u10}-{d13}-{h64}
slack-webhook SLACK_WEBHOOK_URL https://hooks.slack.com/services/T{u10}/B{u10}/{A24}
discord-webhook DISCORD_WEBHOOK https://discord.com/api/webhooks/{d18}/{w68}
telegram-bot TELEGRAM_BOT_TOKEN {d10}:AA{w33}
stripe-live STRIPE_SECRET_KEY sk_live_51{A97}
stripe-restricted STRIPE_KEY rk_live_{A24}
stripe-webhook STRIPE_WEBHOOK_SECRET whsec_{A32}
square-access SQUARE_ACCESS_TOKEN EAAA{w60}
square-secret SQUARE_SECRET sq0csp-{w43}
braintree BRAINTREE_ACCESS_TOKEN access_token$production${l16}${h32}
shopify-access SHOPIFY_ACCESS_TOKEN shpat_{h32}
shopify-secret SHOPIFY_SHARED_SECRET shpss_{h32}
twilio-key TWILIO_API_KEY SK{h32}
twilio-auth TWILIO_AUTH_TOKEN {h32} context
sendgrid SENDGRID_API_KEY SG.{w22}.{w43}
mailgun MAILGUN_API_KEY key-{h32}
mailchimp MAILCHIMP_API_KEY {h32}-us12
brevo BREVO_API_KEY xkeysib-{h64}-{A16}
postmark POSTMARK_SERVER_TOKEN {uuid} context
npm NPM_TOKEN npm_{A36}
python-index PYPI_TOKEN pypi-AgEIcHlwaS5vcmc{w120}
rubygems GEM_HOST_API_KEY rubygems_{h48}
nuget NUGET_API_KEY oy2{l43}
crates CARGO_REGISTRY_TOKEN cio{A32}
docker-hub DOCKER_TOKEN dckr_pat_{w27}
hugging-face HF_TOKEN hf_{A34}
openai-project OPENAI_API_KEY sk-proj-{w74}T3BlbkFJ{w74}
openai-old OPENAI_API_KEY sk-{A20}T3BlbkFJ{A20}
anthropic ANTHROPIC_API_KEY sk-ant-api03-{w93}AA
openrouter OPENROUTER_API_KEY sk-or-v1-{h64}
groq GROQ_API_KEY gsk_{A52}
perplexity PERPLEXITY_API_KEY pplx-{A48}
replicate REPLICATE_API_TOKEN r8_{A37}
xai XAI_API_KEY xai-{A80}
deepseek DEEPSEEK_API_KEY sk-{h32}
cohere COHERE_API_KEY {A40} context
mistral MISTRAL_API_KEY {A32} context
langsmith LANGSMITH_API_KEY lsv2_pt_{h32}_{h10}
langfuse LANGFUSE_SECRET_KEY sk-lf-{uuid}
pinecone PINECONE_API_KEY pcsk_{A6}_{A63}
tavily TAVILY_API_KEY tvly-dev-{A32}
weights-biases WANDB_API_KEY {h40} context
digitalocean DIGITALOCEAN_TOKEN dop_v1_{h64}
heroku HEROKU_API_KEY HRKU-AA{w58}
vercel VERCEL_TOKEN {A24} context
netlify NETLIFY_AUTH_TOKEN nfp_{A36}
fly FLY_API_TOKEN fm2_lJPECAAA{b180}
cloudflare CLOUDFLARE_API_TOKEN {w40} context
cloudflare-ca CF_ORIGIN_CA_KEY v1.0-{h24}-{h146}
fastly FASTLY_API_TOKEN {w32} context
terraform TF_API_TOKEN {A14}.atlasv1.{A67}
vault VAULT_TOKEN hvs.CAES{w90}
doppler DOPPLER_TOKEN dp.pt.{A43}
pulumi PULUMI_ACCESS_TOKEN pul-{h40}
databricks DATABRICKS_TOKEN dapi{h32}
planetscale PLANETSCALE_TOKEN pscale_tkn_{w43}
supabase SUPABASE_ACCESS_TOKEN sbp_{h40}
postgres-url DATABASE_URL postgres://app:{A16}@db.internal:5432/app
mongo-url MONGODB_URI mongodb+srv://svc:{A18}@cluster0.ab1cd.mongodb.net/prod
redis-url REDIS_URL rediss://default:{A22}@cache.internal:6380/0
amqp-url AMQP_URL amqp://worker:{A14}@mq.internal/tasks
grafana-service GRAFANA_TOKEN glsa_{A32}_{h8}
grafana-cloud GRAFANA_CLOUD_TOKEN glc_eyJvIjoi{b80}
datadog DD_API_KEY {h32} context
new-relic NEW_RELIC_API_KEY NRAK-{u27}
sentry SENTRY_AUTH_TOKEN sntrys_eyJpYXQiOjE3{b120}_{b43}
sentry-user SENTRY_TOKEN sntryu_{h64}
pagerduty PAGERDUTY_TOKEN u+{w18} context
atlassian JIRA_API_TOKEN ATATT3xFfGF0{w172}={h8}
bitbucket BITBUCKET_APP_PASSWORD ATBB{A32}
linear LINEAR_API_KEY lin_api_{A40}
notion NOTION_TOKEN ntn_{A46}
notion-old NOTION_API_KEY secret_{A43}
airtable AIRTABLE_TOKEN pat{A14}.{h64}
asana ASANA_ACCESS_TOKEN 1/{d16}:{h32}
figma FIGMA_TOKEN figd_{w40}
postman POSTMAN_API_KEY PMAK-{h24}-{h34}
readme README_API_KEY rdme_{l70}
prefect PREFECT_API_KEY pnu_{A36}
facebook FACEBOOK_ACCESS_TOKEN EAAB{A150}
twitter TWITTER_BEARER_TOKEN AAAAAAAAAAAAAAAAAAAAA{A40}%3D{A50}
dropbox DROPBOX_TOKEN sl.B{w135}
hubspot HUBSPOT_TOKEN pat-na1-{uuid}
algolia ALGOLIA_ADMIN_KEY {h32} context
alibaba-id ALIBABA_ACCESS_KEY_ID LTAI5t{A18}
alibaba-secret ALIBABA_ACCESS_KEY_SECRET {A30} context
tencent TENCENT_SECRET_ID AKID{A32}
volcengine VOLC_ACCESS_KEY AKLT{A44}
yandex YANDEX_API_KEY AQVN{w36}
duffel DUFFEL_TOKEN duffel_live_{w43}
easypost EASYPOST_API_KEY EZAK{A54}
lob LOB_API_KEY live_{h35}
plaid PLAID_ACCESS_TOKEN access-production-{uuid}
razorpay RAZORPAY_KEY_ID rzp_live_{A14}
flutterwave FLW_SECRET_KEY FLWSECK-{h32}-X
typeform TYPEFORM_TOKEN tfp_{A44}_{w14}
frameio FRAMEIO_TOKEN fio-u-{w64}
shippo SHIPPO_TOKEN shippo_live_{h40}
clojars CLOJARS_TOKEN CLOJARS_{l60}
age AGE_KEY AGE-SECRET-KEY-1{c58}
jfrog ARTIFACTORY_API_KEY AKCp8{A68}
dynatrace DYNATRACE_TOKEN dt0c01.{t24}.{t64}
scalingo SCALINGO_TOKEN tk-us-{w48}
sourcegraph SRC_ACCESS_TOKEN sgp_{h16}_{h40}
octopus OCTOPUS_API_KEY API-{u26}
infracost INFRACOST_API_KEY ico-{A32}
contentful CONTENTFUL_TOKEN CFPAT-{w43}
okta OKTA_API_TOKEN 00{w40} context
circleci CIRCLE_TOKEN CCIPAT_{A22}_{h40}
buildkite BUILDKITE_TOKEN bkua_{h40}
snyk SNYK_TOKEN {uuid} context
sonarqube SONAR_TOKEN squ_{h40}
tailscale TS_AUTHKEY tskey-auth-k{A11}CNTRL-{A32}
""".split("\n")

VENDORS: tuple[Vendor, ...] = (
    *(_vendor(line) for line in _TABLE if line),
    Vendor("discord-bot", "DISCORD_TOKEN", _discord),
    Vendor("mapbox", "MAPBOX_SECRET_TOKEN", _mapbox),
    Vendor("one-password", "OP_SERVICE_ACCOUNT_TOKEN", _one_password),
)

# How a key travels; {camel} is the variable in camelCase, {low} in lower case.
_SHOWN = {
    "env": "export {name}={value}\nexport LOG_LEVEL=debug\n",
    "dotenv-quoted": '# local\n{name}="{value}"\nPORT=8080\n',
    "json": '{{"region": "eu", "{low}": "{value}", "retries": 3}}',
    "yaml": "service:\n  replicas: 2\n  {low}: {value}\n  timeout: 30s\n",
    "curl": 'curl -sS -H "Authorization: Bearer {value}" https://api.example.net/v2/me',
    "curl-header": "curl -H 'X-Api-Key: {value}' -d @body.json https://api.example.net",
    "python": 'client = Client(\n    {low}="{value}",\n    timeout=30,\n)\n',
    "javascript": "const {camel} = '{value}';\nmodule.exports = {{ {camel} }};\n",
    "go": 'func main() {{\n\t{camel} := "{value}"\n\trun({camel})\n}}\n',
    "java": 'private static final String {name} = "{value}";\n',
    "flag": "deploy --region eu --{dashed} {value} --verbose",
    "log": "2026-03-04T05:06:07Z ERROR upstream said 401 for {low}={value} attempt=2",
    "english": "For the demo use {value} as the {vendor} key; it expires on Friday.",
    "chinese": "{vendor} 的密钥是 {value}，周五之前有效，请不要外传。",
}
_HELD_OUT = {
    "alone": "{value}\n",
    "comment": "    pass  # was {value} until the last rotation\n",
    "dockerfile": "FROM debian\nENV {name} {value}\nENV LANG=C\n",
    "properties": "spring.profile=prod\nacme.{dotted}={value}\n",
    "terraform": 'variable "x" {{\n  {low} = "{value}"\n}}\n',
    "php": "<?php define('{name}', '{value}');\n",
    "ruby": "config = {{ :{low} => '{value}', :retries => 3 }}\n",
    "query": "GET https://api.example.net/v1/items?page=2&{low}={value}&sort=asc",
    "nested-json": '{{"body": "{{\\"{camel}\\": \\"{value}\\"}}", "status": 200}}',
    "xml": '<add key="{name}" value="{value}" />\n<timeout>30</timeout>\n',
    "table": "| name | value |\n|---|---|\n| {name} | {value} |\n| region | eu |\n",
    "diff": '@@ -1,2 +1,2 @@\n-{low}: str = ""\n+{low}: str = "{value}"\n',
    "csharp": 'var options = new Options {{ {pascal} = "{value}" }};\n',
    "question": "why does {value} give me a 403? {low} worked yesterday",
}
# Of each carrier, whether it is held out.
CARRIERS: dict[str, bool] = {
    **dict.fromkeys(_SHOWN, False),
    **dict.fromkeys(_HELD_OUT, True),
}


def carried(vendor: Vendor, carrier: str, value: str) -> str:
    """``value`` in the text of a carrier."""
    low = vendor.variable.lower()
    pascal = "".join(map(str.title, low.split("_")))
    return (_SHOWN | _HELD_OUT)[carrier].format(
        name=vendor.variable,
        low=low,
        dashed=low.replace("_", "-"),
        dotted=low.replace("_", "."),
        camel=pascal[0].lower() + pascal[1:],
        pascal=pascal,
        vendor=vendor.name.replace("-", " ").title(),
        value=value,
    )


def secret_of(value: str) -> str:
    """The part of a value that must go: of a URL, its password; else all of it."""
    _, scheme, rest = value.partition("://")
    if scheme and "@" in rest:
        return rest.split("@")[0].split(":")[1]
    if scheme:
        return rest.rsplit("/", 1)[1]
    return value
