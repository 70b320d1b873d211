"""Rules of ``secrets-extended``: tokens whose only mark is a vendor's name nearby."""

from refold.redaction.keys import near_vendor
from refold.redaction.packs.parts import QUOTE
from refold.redaction.rule import Rule

# Vendors whose keys have no mark of their own.
_VENDORS = (
    *(
        "adafruit",
        "adobe",
        "airtable",
        "algolia",
        "alibaba",
        "aliyun",
        "amplitude",
        "asana",
    ),
    *(
        "atlassian",
        "auth0",
        "azure",
        "beamer",
        "bitbucket",
        "bittrex",
        "braintree",
        "bugsnag",
    ),
    *(
        "cloudflare",
        "codecov",
        "cohere",
        "coinbase",
        "confluent",
        "contentful",
        "datadog",
    ),
    *(
        "deepseek",
        "discord",
        "droneci",
        "dropbox",
        "etsy",
        "facebook",
        "fastly",
        "finicity",
    ),
    *("finnhub", "flickr", "freshbooks", "gitter", "gocardless", "heroku", "hubspot"),
    *(
        "intercom",
        "jfrog",
        "jira",
        "confluence",
        "kraken",
        "kucoin",
        "launchdarkly",
        "linear",
    ),
    *(
        "linkedin",
        "looker",
        "mailchimp",
        "mailgun",
        "mattermost",
        "meraki",
        "messagebird",
    ),
    *(
        "mistral",
        "mixpanel",
        "netlify",
        "newrelic",
        "new_relic",
        "nytimes",
        "okta",
        "opsgenie",
    ),
    *(
        "pagerduty",
        "paypal",
        "plaid",
        "postmark",
        "privateai",
        "pusher",
        "rapidapi",
        "rollbar",
    ),
    *(
        "segment",
        "sendbird",
        "sentry",
        "sidekiq",
        "snyk",
        "sonar",
        "squarespace",
        "sumologic",
    ),
    *(
        "telegram",
        "tencent",
        "travis",
        "twilio",
        "twitch",
        "twitter",
        "unsplash",
        "wandb",
    ),
    *(
        "weatherapi",
        "openweather",
        "yandex",
        "zendesk",
        "zoom",
        "baidu",
        "volcengine",
        "vault",
    ),
    *("shodan", "etherscan", "infura", "alchemy", "moralis", "tiingo", "alphavantage"),
)

NAMED = (
    Rule(
        id="key.vendor.near",
        type="API_KEY",
        gate=_VENDORS,
        then=r"[\w.\- \t]{0,28}[=:|>,(\"'`\\]",
        pattern=rf"(?i:{'|'.join(_VENDORS)})[\w.\- ]{{0,24}}(?:{QUOTE})?[ \t]{{0,4}}"
        rf"(?:=>|:=|:{{1,3}}=?|={{1,3}}|\|{{1,2}}|,|\(|>)(?:[ \t=]|{QUOTE}){{0,6}}"
        r"(?P<value>[A-Za-z0-9_=+/\-.]{12,160})(?![A-Za-z0-9_+/])",
        group="value",
        validator=near_vendor,
        priority=25,
        examples=(
            'datadog_app: "«7f3a9c1e5b8d2046ace8137f95bd04627f3a9c1e»"',
            "plaid(«q7Zt0Kx3Vb9Lm2Np5Rs8Wd»)",
        ),
        counter_examples=(
            "datadog: enabled",
            'discord = "https://discord.gg/abc"',
            "datadog-agent: 7.41.0-linux-amd64",
        ),
    ),
)
