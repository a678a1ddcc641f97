"""Bundled word list: short and common English words, which are one token for most tokenizers."""

_LIST = """
able above across act add after again age agent ago air all allow almost alone along already also always amount angle
animal another answer any apple area arm army around art ask attack aunt author autumn away baby back bad bag bake
balance ball band bank bar base basic basket bath battle beach bean bear beat beauty bed bell belt bench bend best
better between bicycle big bird birth bitter black blade blank block blood blow blue board boat body bold bone book
border born both bottle bottom bowl box boy brain branch brave bread break breath brick bridge brief bright bring
broad broken brother brown brush build burn bus bush business busy butter button buy cabin cable cake call calm camera
camp can candle capital captain car carbon card care carry case castle cat catch cause cave center certain chain chair
chalk chance change chapter charge chart cheap check cheese chest chicken chief child choice church circle city claim
class clean clear clever client climb clock close cloth cloud club coach coal coast coat code coffee coin cold collar
color column come common copper copy corn corner cost cotton count country couple course court cover cow cream create
credit crew crime crop cross crowd crown cruel cry culture cup current curtain curve custom cycle damage dance danger
dark date daughter day deal dear debate debt decide deep degree delay dense depth desert design desk detail device
dinner dirt disk distance doctor dog dollar door doubt down draft dream dress drink drive drop dry duck dust duty
eager eagle early earth east easy eat edge effect egg eight elbow elder empty end enemy energy engine enjoy enough
enter entire equal error escape even evening event every exact example exit expert eye fabric face fact factor fail
fair faith fall false family famous far farm fast fat father fault favor fear feather feed feel fence few field
fifteen fight figure file fill film final find fine finger finish fire firm first fish fit five flag flame flat flight
floor flour flow flower fly focus fold follow food foot force foreign forest forget fork form fort forward found four
frame free fresh friend from front frost fruit fuel full fun future gallery game garage garden gas gate gather general
gentle giant gift girl give glad glass globe glove goal goat gold good grade grain grand grass gray great green grey
ground group grow guard guess guest guide gun habit hair half hall hammer hand happy harbor hard harvest hat head
health hear heart heat heavy height hello help herb hero hidden high hill history hold hole holiday home honest honey
hope horse hotel hour house human humor hundred hunt hurry ice idea image import inch income index inner insect inside
iron island item ivory jacket jail jar job join joke journey joy judge juice jump junior jury just keen keep key kick
kid kind king kitchen knee knife knock know label labor lady lake lamp land language large last late laugh law layer
lead leaf league learn least leather leave left leg legal lemon length less lesson letter level library life lift
light like limit line lion lip liquid list little live load loan local lock logic lonely long look loose lose loud
love low lucky lunch machine magic mail main major make male manager map march margin mark market marry mask mass
master match material matter meal measure meat medal media medium meet melt member memory mental menu mercy metal
method middle mild mile milk mill mind mine minor minute mirror miss mix mobile model modern moment money monkey month
moon moral morning most mother motion motor mountain mouse mouth move much mud muscle museum music must nail name
narrow nation native nature near neck need needle neighbor nerve nest net never new news next nice night nine noble
noise north nose note nothing novel number nurse object ocean offer office oil old olive one onion open opera option
orange orbit order organ other outside oven over owner page pain paint pair palace pale panel paper parent park part
party pass past path pattern peace pen pencil people pepper perfect period person phone photo piano picture piece pig
pilot pin pink pipe place plain plan planet plant plastic plate play please plenty pocket poem point police polite
pool poor port post potato pound powder power praise present press price pride prince print prison prize problem
process profit proof proud public pull pump pupil pure push quality quarter queen question quick quiet quite rabbit
race radio rail rain raise range rapid rare rate raw reach read ready real reason record red region relief remain
remote rent reply report rest result rice rich ride right ring rise river road robot rock role roll roof room root
rope rose rough round route row royal rubber rule run rural sad safe sail salad salt same sample sand save scale scene
school science score screen sea search season seat second secret seed sell senior sense series seven shade shadow
shallow shape share sharp sheep sheet shelf shell shine ship shirt shoe shop short shoulder show sick side sight sign
silent silk silver simple sing sister six size skill skin skirt sky sleep slice slide slow small smart smell smile
smoke smooth snake snow soap social soft soil soldier solid some son song soon sort soul sound soup south space spare
speak special speech speed spell spend spirit spoon sport spot spring square stable staff stage stair stamp stand star
start state station steam steel stem step stick still stock stone stop store storm story straight strange stream
street string strong student study style sudden sugar suit summer sun supply support sure surface swim switch symbol
system table tail take tale talk tall tank tape task taste tax tea teach team tear ten tennis tent term test text
thank theory thick thin thing think third thread three throat throw thumb ticket tide tie tiger tight time tin tiny
tip title today toe together tomorrow tone tongue tool tooth top total touch tour tower town track trade train travel
tray tree trial tribe trick trip truck true trust truth tube tune turn twelve twenty twice twin two type uncle under
union unique unit until upper urban use useful usual valley value van vast version very vessel video view village
violin visit voice volume vote wage wait wake walk wall want war warm wash waste watch water wave way weak wealth
weapon wear weather week weight welcome well west wet wheel white whole wide wife wild wind window wine wing winter
wire wise wish wolf woman wonder wood wool word work world worm worry worth wound write wrong yard year yellow yes
yesterday young youth zero zone
"""

WORDS: tuple[str, ...] = tuple(_LIST.split())
